"""What is fitted to held-out images after training, in place: temperatures and the floor (`temper`), conformal scores
(`calibrate`), and what is typical (`find_typicality`)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional as F

from aquamam.data.base import Batch, RotationDataset
from aquamam.data.labels import draw_labels
from aquamam.data.random import uniforms, words
from aquamam.errors import require
from aquamam.geometry.cells import Cells
from aquamam.geometry.rotations import LOG_UNIFORM
from aquamam.network.model import AQuaMaM, RotationModel
from aquamam.posterior import windows
from aquamam.posterior.calibration import ConformalScores, Typicality, quantile
from aquamam.posterior.distribution import RotationDistribution
from aquamam.posterior.regions import Drawn, check_level
from aquamam.training.held_out import held_out

LEAST_FLOOR = 1e-3  # held-out renders cannot say how often a photograph is beyond the network; this costs 0.001 nats
DIRECTIONS = 48  # principal ones that are told apart
LEAST = 20  # images; p-values of fewer could not be below 0.1


# --- conformal scores -------------------------------------------------------------------------------------------------


@torch.no_grad()
def calibrate(
    model: RotationModel,
    dataset: RotationDataset,
    levels: Sequence[float] = (0.5, 0.9, 0.95),
    *,
    samples: int = 200,
    groups: int = 1,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 64,
    quiet: bool = True,
) -> dict[str, Any]:
    """Score held-out images, keep the scores in `model.calibration`, and return them with the share of the posterior
    that each level takes ("levels": one for each group).

    The images must be none that the model was trained or chosen on. Save the model afterwards. groups: images are
    divided into so many by the spread of their posteriors, and each group is calibrated by itself, so that neither sure
    nor unsure answers pay for the others.
    """
    rule = "samples must be at least 20 and groups at least 1"
    require(samples >= 20 and groups >= 1, f"{rule}, got {samples} and {groups}.")
    for level in levels:
        check_level(level)
    scores, spreads = [], []
    for batch in held_out(model, dataset, batch_size, limit=limit, title=None if quiet else "calibrating"):
        drawn = draw(model(batch.images), batch, samples, seed)
        scores.append(score(drawn, batch, dataset, seed).double().cpu())
        spreads.append(drawn.spread.cpu())
    none = "calibration needs held-out images, and none of these can be read; choose another split."
    require(len(scores) > 0, none)
    found = _grouped(torch.cat(scores), torch.cat(spreads), groups, samples)
    model.calibration = replace(model.calibration, scores=found)
    shares = {f"{level:g}": [quantile(group, level) for group in found.scores] for level in levels}
    return {**asdict(found), "levels": shares, "images": sum(map(len, scores))}


def draw(posterior: RotationDistribution, batch: Batch, samples: int, seed: int) -> Drawn:
    """Samples of each image, a function of the seed and of the batch."""
    word = int(words(seed, "calibration/samples", np.array(batch.indices[:1], np.int64), 1)[0, 0])
    return Drawn.of(posterior, samples, torch.Generator(device=batch.images.device).manual_seed(word >> 1))


def score(drawn: Drawn, batch: Batch, dataset: RotationDataset, seed: int) -> Float[Tensor, "images"]:
    """For each image the mass of the region that just holds its truth: one of the equivalent ones, drawn evenly.

    A region of `ConformalScores` holds the truth exactly where the score is at most its `mass`.
    """
    numbers = np.array(batch.indices, np.int64)
    # two, and the first of them: asked for one, it gives the pictured rotation, which need not be evenly drawn
    truth = draw_labels(batch, dataset, 2, seed=seed, positions=numbers)[0][0]
    u = torch.from_numpy(uniforms(seed, "calibration/rank", numbers, 1)[:, 0]).to(truth.device)
    return drawn.score(truth, u)


def _grouped(score: Tensor, spread: Tensor, groups: int, samples: int) -> ConformalScores:
    edges = torch.quantile(spread, torch.arange(1, groups, dtype=torch.float64) / groups)
    group = torch.searchsorted(edges, spread.contiguous())
    score = (score * 1e6).ceil() / 1e6  # short in a file; upwards, which only makes regions larger
    scores = tuple(tuple(score[group == k].sort().values.tolist()) for k in range(groups))
    return ConformalScores(samples=samples, scores=scores, edges=tuple(edges.tolist()))


# --- temperatures and the floor ---------------------------------------------------------------------------------------


class HeldOutToken(NamedTuple):
    """Logits of one token on held-out images, given the true tokens before it, and what came."""

    logits: Float[Tensor, "n bins"]
    before: Int64[Tensor, "n c"]  # bins of the rotation's tokens before it, where they decide which bins are legal
    labels: Int64[Tensor, "n"]

    def cost(self, cells: Cells, temperature: float) -> float:
        """Mean of minus the log-probability of what came."""
        logits = self.logits / temperature
        if self.before.shape[1]:
            logits = cells.restrict(logits, self.before)
        return float(F.cross_entropy(logits, self.labels))


@torch.no_grad()
def temper(model: AQuaMaM, dataset: RotationDataset, limit: int = 1000) -> tuple[float, ...]:
    """Find the temperatures and the floor of `model` with the highest likelihood of held-out images; returns by how
    much the temperatures changed.

    A network is often less sure, or surer, than its errors allow. Dividing the logits of a token by one number cannot
    change which bin is the likeliest, only how sharp its distribution is. The floor, a share of the uniform
    distribution, is what is left for images that the network gets wrong.
    """

    def best_temperature(token: HeldOutToken) -> float:  # the cost is convex in its inverse
        return _minimum(lambda x: token.cost(model.cells, math.exp(x)), 1 / 8, 8.0)

    changes = tuple(map(best_temperature, held_out_tokens(model, dataset, limit)))
    before = model.calibration.temperatures
    temperatures = (*(round(old * new, 6) for old, new in zip(before, changes)), *before[len(changes) :])
    # scores are those of the posteriors as they were
    model.calibration = replace(model.calibration, temperatures=temperatures, floor=0.0, scores=None)
    batches = held_out(model, dataset, limit=limit)
    log_p = torch.cat([model(batch.images).log_prob(batch.rotations[:, 0]).double() for batch in batches])

    def cost(x: float) -> float:
        uniform = log_p.new_full((), LOG_UNIFORM + x)
        return -float(torch.logaddexp(log_p + math.log1p(-math.exp(x)), uniform).mean())

    model.calibration = replace(model.calibration, floor=round(_minimum(cost, LEAST_FLOOR, 0.5), 6))
    return changes


def _minimum(cost: Callable[[float], float], low: float, high: float) -> float:
    """Where between two positive numbers a function of the logarithm is least."""
    found = minimize_scalar(cost, bounds=(math.log(low), math.log(high)), method="bounded")
    return math.exp(float(found.x))


def held_out_tokens(model: AQuaMaM, dataset: RotationDataset, limit: int) -> list[HeldOutToken]:
    """The tokens of the pictured rotation of each image, and of its window where the model tells poses."""
    cells, parts = model.cells, []
    for batch in held_out(model, dataset, limit=limit):
        point = cells.chart.split(batch.rotations[:, 0])
        cell = cells.locate(point)
        labels, seen = cell, cells.seen(point.u[:, :2], cell[:, :2])
        if model.config.pose and batch.windows is not None:
            place = windows.locate(batch.windows, cells.bins)
            labels = torch.cat([cell, place], -1)
            seen = torch.cat([seen, cells.centre(cell[:, 2:]), windows.centre(place[:, :2], cells.bins)], -1)
        prefix = model.encode(batch.images)
        logits, _ = prefix.rest(point.chart[None], seen.float()[None])
        tokens = [HeldOutToken(prefix.first(), cell[:, :0], point.chart * cells.bins + cell[:, 0])]
        for c in range(1, labels.shape[1]):
            tokens.append(HeldOutToken(logits[0, :, c - 1], cell[:, : c if c < 3 else 0], labels[:, c]))
        parts.append(tokens)
    return [HeldOutToken(*(torch.cat(field) for field in zip(*token))) for token in zip(*parts)]


# --- typicality -------------------------------------------------------------------------------------------------------


@torch.no_grad()
def find_typicality(model: AQuaMaM, dataset: RotationDataset) -> None:
    """Find what is typical of held-out images: one half makes a Gaussian of the encoder's states and the usual entropy,
    the other the scores behind p-values."""
    parts = [model.posterior(batch.images).image_state.double().cpu() for batch in held_out(model, dataset)]
    states = torch.cat(parts) if parts else torch.zeros(0, 2)
    rule = f"typicality needs at least {LEAST} held-out images that can be read"
    require(len(states) >= LEAST, f"{rule}, got {len(states)}; with 1,000 p-values are good to 0.002.")
    made, judged = states[::2, :-1], states[1::2]
    mean = made.mean(0)
    _, size, directions = torch.linalg.svd(made - mean, full_matrices=False)
    deviation = size / len(made) ** 0.5
    kept = min(DIRECTIONS, len(deviation) // 2)
    found = Typicality(
        mean=tuple(mean.float().tolist()),
        directions=tuple(map(tuple, (directions[:kept] / deviation[:kept, None].clamp_min(1e-6)).float().tolist())),
        rest=float(deviation[kept:].square().mean().sqrt().clamp_min(1e-6)),
    )
    both = torch.stack([found.distance(judged[:, :-1]), judged[:, -1]])
    usual = torch.stack([both.mean(-1), both.std(-1).clamp_min(1e-6)], -1)
    found = replace(found, usual=tuple(map(tuple, usual.tolist())))
    found = replace(found, scores=tuple(found.score(judged).sort().values.tolist()))
    model.calibration = replace(model.calibration, typicality=found)
