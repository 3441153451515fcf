"""Temperatures: factors for the logits of each token that make held-out images likelier, or their regions cover what they say.

A network that was trained for a short while is often less sure than its errors allow. Scaling the logits of a token cannot change which
bin is the likeliest, only how sharp its distribution is. One number for each token is part of the model's config (`sharpness`). A network
may also be too sure of some images and not sure enough of others, which one number cannot mend; so a linear function of the state that
the logits come from may tell another factor (`certainty`). And a factor cannot mend a distribution of another shape than its errors have:
flatter or sharper near the top than far below it (`contrast`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int64
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.nn import functional as F

from aquamam.geometry.cells import Cells
from aquamam.data.base import RotationDataset
from aquamam.data.stream import one_pass
from aquamam.errors import InputError
from aquamam.data.labels import draw_labels
from aquamam.evaluation.metrics import density_pit
from aquamam.network.model import AQuaMaM, ModelConfig

TOKENS = ("first", "second", "third")
AIMS = ("likelihood", "coverage")
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)  # for the squared weights of a state
LEVELS = (0.5, 0.9, 0.95)  # of the regions whose coverage is looked at
STEP = 0.1  # between the logarithms of the factors at which it is measured
ROUNDS = 4  # of such measurements at most
DRAWS = 100  # samples an image, to see what regions cover
TRUTHS = 8  # of an image that are looked at
SHAPE_LEVELS = (0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95)  # whose coverage tells the shape
SHAPE_STEP = 0.2  # between the logarithms of the slopes at which it is measured
SHAPE_REACH = 0.7  # the farthest that these go in a round


class Token(NamedTuple):
    """Logits of one of the three tokens on held-out images, given the true tokens before it, and what came."""

    logits: Float[Tensor, "n bins"]  # what a factor scales
    before: Int64[Tensor, "n c"]  # bins of the tokens before it
    labels: Int64[Tensor, "n"]
    states: Float[Tensor, "n dim"]  # which the logits come from

    def part(self, rows: slice) -> "Token":
        return Token(*(field[rows] for field in self))

    def surprise(self, cells: Cells, factor: float | Tensor = 1.0) -> Float[Tensor, ""]:
        """Mean of minus the log-probability of what came, the logits scaled by a factor."""
        logits = self.logits * factor
        if self.before.shape[1]:  # every first token is legal
            logits = cells.restrict(logits, self.before)
        return F.cross_entropy(logits, self.labels)


class Look(NamedTuple):
    """Held-out images and as many true rotations of each."""

    images: Tensor
    truths: Float[Tensor, "truths batch 4"]


def looks(dataset: RotationDataset, limit: int, *, skip: int = 0) -> list[Look]:
    """The first `limit` images but the first `skip`, each with `TRUTHS` of its true rotations (some of them twice if there are fewer), spread
    evenly over all: where many rotations give a picture, one of them says little about its regions."""
    found = []
    for batch in one_pass(dataset, 50, limit=limit):
        if len(batch) and batch.indices[0] >= skip:
            truths, _ = draw_labels(batch, dataset, TRUTHS, seed=0, positions=np.array(batch.indices))
            found.append(Look(batch.images, truths))
    return found


def temper(
    model: AQuaMaM, dataset: RotationDataset, limit: int = 1000, *, aim: str = "likelihood", certainty: bool = False
) -> dict[str, float]:
    """Sharpen or flatten each token of `model` in place on held-out data; returns the factors by which it did.

    aim: the highest "likelihood", or from there one factor for all tokens with the best "coverage": truths then fall as often into the
    posterior's regions as these claim (`temper_coverage`).
    certainty: find factors that depend on the state first, for the highest likelihood; a few thousand images tell them well.
    """
    if aim not in AIMS:
        raise InputError(f"temperatures aim at {' or '.join(AIMS)}, got {aim!r}.")
    model.config, rest = replace(model.config, contrast=(1.0, 1.0, 1.0)), 0  # factors are those of plain logits
    if certainty:  # the other factors come from other images: so many weights suit their own a little too well
        rest = limit * 3 // 4
        _find_certainty(model, [token.part(slice(rest)) for token in held_out_tokens(model, dataset, limit)])
    tokens = held_out_tokens(model, dataset, limit)
    factors = [_likeliest(token.part(slice(rest, None)), model.cells) for token in tokens]
    _scale(model, factors)
    if aim == "coverage":
        again = temper_coverage(model, looks(dataset, limit, skip=rest))
        factors = [factor * again for factor in factors]
    return dict(zip(TOKENS, factors))


def _scale(model: AQuaMaM, factors: Sequence[float]) -> None:
    sharpness = tuple(round(old * new, 6) for old, new in zip(model.config.sharpness, factors))
    model.config = replace(model.config, sharpness=sharpness)


def held_out_tokens(model: AQuaMaM, dataset: RotationDataset, limit: int) -> list[Token]:
    """The first, second and third token of the pictured rotation of each image."""
    cells, parts = model.cells, []
    for batch in one_pass(dataset, 100, limit=limit):
        point = cells.chart.split(batch.rotations[:, 0])
        cell = cells.locate(point)
        with torch.inference_mode():
            prefix = model.encode(batch.images)
            seen = cells.seen(point.u[:, :2], cell[:, :2]).float()
            states, _ = prefix.states(point.chart[None], seen[None])
            logits = model.sharpened(model.head(states), states, 1)
            label = point.chart * cells.bins + cell[:, 0]
            first = Token(prefix.first(), cell[:, :0], label, model.norm(prefix.start))
            parts.append(
                [first, *(Token(logits[0, :, c - 1], cell[:, :c], cell[:, c], states[0, :, c - 1]) for c in (1, 2))]
            )
    return [Token(*(torch.cat(field) for field in zip(*token))) for token in zip(*parts)]


def _find_certainty(model: AQuaMaM, tokens: list[Token]) -> None:
    """Let each token's factor depend on its state as far as held-out images bear it out."""
    found = [_context(token, model.cells) for token in tokens]
    layer = model.certainty or model.add_certainty()
    with torch.no_grad():
        layer.weight.add_(torch.stack([weight for weight, _ in found]))
        layer.bias.add_(torch.stack([bias for _, bias in found]))
    model.config = replace(model.config, certainty=True)


def _context(token: Token, cells: Cells) -> tuple[Float[Tensor, "dim"], Float[Tensor, ""]]:
    """Weight and bias of the log factor; how far it may depend on the state is chosen by the last quarter of the images."""
    cut = len(token.labels) * 3 // 4
    left_out = token.part(slice(cut, None))
    costs = []
    for penalty in PENALTIES:
        weight, bias = _fitted(token.part(slice(cut)), cells, penalty)
        costs.append(left_out.surprise(cells, torch.exp(left_out.states @ weight + bias)[:, None]))
    return _fitted(token, cells, PENALTIES[int(torch.stack(costs).argmin())])


def _fitted(token: Token, cells: Cells, penalty: float) -> tuple[Float[Tensor, "dim"], Float[Tensor, ""]]:
    weight = token.states.new_zeros(token.states.shape[1]).requires_grad_()
    bias = token.states.new_zeros(()).requires_grad_()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=60, line_search_fn="strong_wolfe")

    def cost() -> Tensor:
        optimizer.zero_grad()
        factor = torch.exp(token.states @ weight + bias)[:, None]
        loss = token.surprise(cells, factor) + penalty * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(cost)
    return weight.detach(), bias.detach()


def temper_coverage(model: AQuaMaM, images: Sequence[Look]) -> float:
    """Sharpen or flatten all tokens of `model` by one factor, in place, so that its regions at `LEVELS` cover what they say as nearly as
    they can; returns the factor.

    What regions cover is measured at three factors and taken as linear between them, and again from there while the best lies at an
    end: thousands of images tell it to a percent, and each costs as much as drawing `DRAWS` samples three times.
    """
    factor = 1.0
    for _ in range(ROUNDS):
        log_factor = _covering(model, images)
        _scale(model, [math.exp(log_factor)] * 3)
        factor *= math.exp(log_factor)
        if abs(log_factor) < STEP:
            break
    return factor


def _covering(model: AQuaMaM, images: Sequence[Look]) -> float:
    """The logarithm of the best factor within `STEP` of 0; the model stays as it is."""
    sharpness = model.config.sharpness
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    found = []
    for log_factor in (-STEP, 0.0, STEP):
        _scale(model, [math.exp(log_factor)] * 3)
        found.append(_covered(model, images, LEVELS))
        model.config = replace(model.config, sharpness=sharpness)
    covered = torch.stack(found)  # (factors, levels)
    slope = (covered[2] - covered[0]) / (2 * STEP)
    off = covered.mean(0) - levels
    best = float(-(slope * off).sum() / slope.square().sum().clamp_min(1e-12))
    return min(max(best, -STEP), STEP)


def temper_contrast(model: AQuaMaM, images: Sequence[Look], rounds: int = 3) -> tuple[float, ...]:
    """Bend the logits of the second and third token of `model`, and scale all, in place, until its regions cover what they say at every
    level; returns the slopes (`ModelConfig.contrast`).

    One factor moves all regions together. Where small ones cover too little and large ones too much, the top of the distributions must
    become flatter and their feet steeper. Three slopes and the factor by Gauss-Newton steps, what they change measured on the images:
    each round costs as much as drawing `DRAWS` samples of every image five times.
    """
    levels, config = torch.tensor(SHAPE_LEVELS, dtype=torch.float64), model.config
    best = torch.zeros(4, dtype=torch.float64)

    def off(logs: Tensor) -> Tensor:
        _bend(model, config, logs)
        return _covered(model, images, SHAPE_LEVELS) - levels

    left = off(best)
    for _ in range(rounds):
        steps = SHAPE_STEP * torch.eye(4, dtype=torch.float64)
        effect = torch.stack(
            [(off(best + step) - left) / SHAPE_STEP for step in steps], -1
        )  # (levels, slopes and factor)
        ridge = 1e-2 * effect.square().sum() * torch.eye(4, dtype=torch.float64)  # what hardly matters stays
        move = -torch.linalg.solve(effect.mT @ effect + ridge, effect.mT @ left).clamp(-SHAPE_REACH, SHAPE_REACH)
        for share in (1.0, 0.5, 0.25):  # what is measured bends, and has luck in it
            there = off(best + share * move)
            if there.square().sum() < left.square().sum():
                best, left = best + share * move, there
                break
        else:
            break
    _bend(model, config, best)
    return model.config.contrast


def _bend(model: AQuaMaM, config: ModelConfig, logs: Float[Tensor, "4"]) -> None:
    """The config with its slopes and its factors changed by the exponentials of these."""
    *slopes, factor = logs.exp().tolist()
    model.config = replace(
        config,
        contrast=tuple(round(old * new, 6) for old, new in zip(config.contrast, slopes)),
        sharpness=tuple(round(old * factor, 6) for old in config.sharpness),
    )


def _covered(model: AQuaMaM, images: Sequence[Look], levels: Sequence[float]) -> Float[Tensor, "levels"]:
    """The share of truths in the posteriors' regions of each level."""
    at = torch.tensor(levels, dtype=torch.float64, device=model.start.device)
    return (held_out_masses(model, images)[:, None] <= at).double().mean(0).cpu()


@torch.inference_mode()
def held_out_masses(model: nn.Module, images: Sequence[Look]) -> Float[Tensor, "n"]:
    """For each truth the mass of the region of the posterior that just holds it, from `DRAWS` samples."""
    generator = torch.Generator(device=next(model.parameters()).device).manual_seed(0)
    masses = []
    for look in images:
        posterior = model(look.images)
        drawn = posterior.sample((DRAWS,), generator=generator)
        at_draws, at_truths = posterior.log_prob(drawn), posterior.log_prob(look.truths.to(drawn))
        lots = torch.rand(at_truths.shape, generator=generator, device=drawn.device)
        masses += [density_pit(truth, at_draws, lot) for truth, lot in zip(at_truths, lots)]
    return torch.cat(masses).double()


def unevenness(u: Float[Tensor, "n"]) -> float:
    """Cramer-von Mises distance of values in [0, 1] from uniform: a smoother goal than the Kolmogorov-Smirnov distance."""
    even = (torch.arange(len(u), dtype=u.dtype, device=u.device) + 0.5) / len(u)
    return float((u.sort().values - even).square().mean())


def _likeliest(token: Token, cells: Cells) -> float:
    """The factor of least cost, which is convex in it."""
    bounds = (math.log(0.125), math.log(8))
    found = minimize_scalar(lambda x: float(token.surprise(cells, math.exp(x))), bounds=bounds, method="bounded")
    return math.exp(float(found.x))
