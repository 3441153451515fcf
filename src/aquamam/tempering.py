"""Temperatures: factors for the logits of each token that make held-out images likelier, or their regions cover what they say.

A network that was trained for a short while is often less sure than its errors allow. Scaling the logits of a token cannot change which
bin is the likeliest, only how sharp its distribution is. One number for each token is part of the model's config (`sharpness`). A network
may also be too sure of some images and not sure enough of others, which one number cannot mend; so a linear function of the state that
the logits come from may tell another factor (`certainty`).
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from scipy.optimize import minimize_scalar
from torch import Tensor, nn
from torch.nn import functional as F

from aquamam.datasets.base import Batch, RotationDataset
from aquamam.datasets.stream import one_pass
from aquamam.errors import InputError
from aquamam.metrics import density_pit
from aquamam.model import AQuaMaM

TOKENS = ("first", "second", "third")
AIMS = ("likelihood", "coverage")
PENALTIES = (1e-3, 1e-2, 1e-1, 1.0)  # for the squared weights of a state
LEVELS = (0.5, 0.9, 0.95)  # of the regions whose coverage is looked at
STEP = 0.1  # between the logarithms of the factors at which it is measured
ROUNDS = 4  # of such measurements at most
DRAWS = 100  # samples an image, to see what regions cover


class Token(NamedTuple):
    """Logits of one of the three tokens on held-out images, given the true tokens before it, and what came."""

    logits: Float[Tensor, "n bins"]  # what a factor scales
    offset: Float[Tensor, "n bins"]  # what is added afterwards: where bins are illegal, far below any logit
    labels: Int64[Tensor, "n"]
    states: Float[Tensor, "n dim"]  # which the logits come from

    def scaled(self, factor: float | Tensor) -> Float[Tensor, "n bins"]:
        return self.logits * factor + self.offset

    def part(self, rows: slice) -> "Token":
        return Token(*(field[rows] for field in self))


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
    rest = 0
    if certainty:  # the other factors come from other images: so many weights suit their own a little too well
        rest = limit * 3 // 4
        _find_certainty(model, [token.part(slice(rest)) for token in held_out_tokens(model, dataset, limit)])
    factors = [_likeliest(token.part(slice(rest, None))) for token in held_out_tokens(model, dataset, limit)]
    _scale(model, factors)
    if aim == "coverage":
        batches = [batch for batch in one_pass(dataset, 50, limit=limit) if len(batch) and batch.indices[0] >= rest]
        again = temper_coverage(model, batches)
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
            first = prefix.first()
            tokens = [Token(first, torch.zeros_like(first), label, model.norm(prefix.start))]
            for c in (1, 2):
                own = logits[0, :, c - 1]
                offset = cells.restrict(torch.zeros_like(own), cell[:, :c]).clamp_min(-1e30)
                tokens.append(Token(own, offset, cell[:, c], states[0, :, c - 1]))
            parts.append(tokens)
    return [Token(*(torch.cat(field) for field in zip(*token))) for token in zip(*parts)]


def _find_certainty(model: AQuaMaM, tokens: list[Token]) -> None:
    """Let each token's factor depend on its state as far as held-out images bear it out."""
    found = [_context(token) for token in tokens]
    layer = model.certainty or model.add_certainty()
    with torch.no_grad():
        layer.weight.add_(torch.stack([weight for weight, _ in found]))
        layer.bias.add_(torch.stack([bias for _, bias in found]))
    model.config = replace(model.config, certainty=True)


def _context(token: Token) -> tuple[Float[Tensor, "dim"], Float[Tensor, ""]]:
    """Weight and bias of the log factor; how far it may depend on the state is chosen by the last quarter of the images."""
    cut = len(token.labels) * 3 // 4
    left_out = token.part(slice(cut, None))
    costs = []
    for penalty in PENALTIES:
        weight, bias = _fitted(token.part(slice(cut)), penalty)
        costs.append(_surprise(left_out, torch.exp(left_out.states @ weight + bias)[:, None]))
    return _fitted(token, PENALTIES[int(torch.tensor(costs).argmin())])


def _fitted(token: Token, penalty: float) -> tuple[Float[Tensor, "dim"], Float[Tensor, ""]]:
    weight = token.states.new_zeros(token.states.shape[1]).requires_grad_()
    bias = token.states.new_zeros(()).requires_grad_()
    optimizer = torch.optim.LBFGS([weight, bias], max_iter=60, line_search_fn="strong_wolfe")

    def cost() -> Tensor:
        optimizer.zero_grad()
        factor = torch.exp(token.states @ weight + bias)[:, None]
        loss = F.cross_entropy(token.scaled(factor), token.labels) + penalty * weight.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(cost)
    return weight.detach(), bias.detach()


def _surprise(token: Token, factor: float | Tensor) -> float:
    return float(F.cross_entropy(token.scaled(factor), token.labels))


def temper_coverage(model: AQuaMaM, batches: Iterable[Batch]) -> float:
    """Sharpen or flatten all tokens of `model` by one factor, in place, so that its regions at `LEVELS` cover what they say as nearly as
    they can; returns the factor.

    What regions cover is measured at three factors and taken as linear between them, and again from there while the best lies at an
    end: thousands of images tell it to a percent, and each costs as much as drawing `DRAWS` samples three times.
    """
    batches, factor = list(batches), 1.0
    for _ in range(ROUNDS):
        log_factor = _covering(model, batches)
        _scale(model, [math.exp(log_factor)] * 3)
        factor *= math.exp(log_factor)
        if abs(log_factor) < STEP:
            break
    return factor


def _covering(model: AQuaMaM, batches: list[Batch]) -> float:
    """The logarithm of the best factor within `STEP` of 0; the model stays as it is."""
    sharpness = model.config.sharpness
    levels = torch.tensor(LEVELS, dtype=torch.float64)
    at = torch.tensor([-STEP, 0.0, STEP], dtype=torch.float64)
    found = []
    for log_factor in at.tolist():
        _scale(model, [math.exp(log_factor)] * 3)
        found.append((held_out_masses(model, batches)[:, None] <= levels.to(model.start.device)).double().mean(0).cpu())
        model.config = replace(model.config, sharpness=sharpness)
    covered = torch.stack(found)  # (factors, levels)
    slope = (covered[2] - covered[0]) / (2 * STEP)
    off = covered.mean(0) - levels
    best = float(-(slope * off).sum() / slope.square().sum().clamp_min(1e-12))
    return min(max(best, -STEP), STEP)


@torch.inference_mode()
def held_out_masses(model: nn.Module, batches: Iterable[Batch]) -> Float[Tensor, "n"]:
    """For each image the mass of the region of the posterior that just holds the truth, from `DRAWS` samples."""
    generator = torch.Generator(device=next(model.parameters()).device).manual_seed(0)
    masses = []
    for batch in batches:
        posterior = model(batch.images)
        drawn = posterior.sample((DRAWS,), generator=generator)
        truth = posterior.log_prob(batch.rotations[:, 0].to(drawn))
        lots = torch.rand(truth.shape, generator=generator, device=truth.device)
        masses.append(density_pit(truth, posterior.log_prob(drawn), lots))
    return torch.cat(masses).double()


def unevenness(u: Float[Tensor, "n"]) -> float:
    """Cramer-von Mises distance of values in [0, 1] from uniform: a smoother goal than the Kolmogorov-Smirnov distance."""
    even = (torch.arange(len(u), dtype=u.dtype, device=u.device) + 0.5) / len(u)
    return float((u.sort().values - even).square().mean())


def _likeliest(token: Token) -> float:
    """The factor of least cost, which is convex in it."""
    bounds = (math.log(0.125), math.log(8))
    return math.exp(float(minimize_scalar(lambda x: _surprise(token, math.exp(x)), bounds=bounds, method="bounded").x))
