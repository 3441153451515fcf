"""Temperatures: one number for each token that makes held-out images likelier, or their regions cover what they say.

A network that was trained for a short while is often less sure than its errors allow. Scaling the logits of a token cannot change which
bin is the likeliest, only how sharp its distribution is. The factors are part of the model's config (`sharpness`).
"""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from scipy.optimize import minimize_scalar
from torch import Tensor

from aquamam.datasets.base import RotationDataset
from aquamam.datasets.stream import one_pass
from aquamam.errors import InputError
from aquamam.model import AQuaMaM

TOKENS = ("first", "second", "third")
AIMS = ("likelihood", "coverage")
NEAR = 1.5  # how far from the likeliest factor, as a ratio, the best covering one is looked for


class Token(NamedTuple):
    """Logits of one of the three tokens on held-out images, given the true tokens before it, and what came."""

    logits: Float[Tensor, "n bins"]  # far below where illegal
    labels: Int64[Tensor, "n"]


def temper(model: AQuaMaM, dataset: RotationDataset, limit: int = 1000, *, aim: str = "likelihood") -> dict[str, float]:
    """Sharpen or flatten each token of `model` in place on held-out data; returns the factors by which it did.

    aim: the highest "likelihood", or the best "coverage" near it: truths then fall as often into the likeliest bins as these claim.
    """
    if aim not in AIMS:
        raise InputError(f"temperatures aim at {' or '.join(AIMS)}, got {aim!r}.")
    factors = {}
    for name, token in zip(TOKENS, held_out_tokens(model, dataset, limit)):
        likeliest = _best(token, _surprise, 0.125, 8.0)
        factors[name] = likeliest
        if aim == "coverage":
            factors[name] = _best(token, _miscoverage, likeliest / NEAR, likeliest * NEAR)
    before = model.config.sharpness
    after = tuple(round(old * new, 6) for old, new in zip(before, factors.values()))
    model.config = replace(model.config, sharpness=after)
    return factors


def held_out_tokens(model: AQuaMaM, dataset: RotationDataset, limit: int) -> list[Token]:
    """The first, second and third token of the pictured rotation of each image."""
    cells, parts = model.cells, []
    for batch in one_pass(dataset, 100, limit=limit):
        point = cells.chart.split(batch.rotations[:, 0])
        cell = cells.locate(point)
        with torch.inference_mode():
            prefix = model.encode(batch.images)
            seen = cells.seen(point.u[:, :2], cell[:, :2]).float()
            logits, _ = prefix.rest(point.chart[None], seen[None])
            legal = torch.stack([cells.legal(cell[:, :1]), cells.legal(cell[:, :2])], 1)
            rest = logits[0].masked_fill(~legal, -1e30)
            first = Token(prefix.first(), point.chart * cells.bins + cell[:, 0])
            parts.append([first, Token(rest[:, 0], cell[:, 1]), Token(rest[:, 1], cell[:, 2])])
    return [Token(*(torch.cat(field) for field in zip(*token))) for token in zip(*parts)]


def _surprise(token: Token, factor: float) -> float:
    return float(torch.nn.functional.cross_entropy(token.logits * factor, token.labels))


def _miscoverage(token: Token, factor: float) -> float:
    """How unevenly the mass is distributed that lies in likelier bins than the true one, ties shared by lot."""
    p = (token.logits * factor).double().softmax(-1)
    truth = p.gather(-1, token.labels[:, None])
    lots = torch.rand(len(p), generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(p.device)
    mass = (p * (p > truth)).sum(-1) + lots * (p * (p == truth)).sum(-1)
    return unevenness(mass)


def unevenness(u: Float[Tensor, "n"]) -> float:
    """Cramer-von Mises distance of values in [0, 1] from uniform: a smoother goal than the Kolmogorov-Smirnov distance."""
    even = (torch.arange(len(u), dtype=u.dtype, device=u.device) + 0.5) / len(u)
    return float((u.sort().values - even).square().mean())


def _best(token: Token, cost: Callable[[Token, float], float], low: float, high: float) -> float:
    """The factor of least cost; what a token costs has one valley in the factor, and for the likelihood it is convex."""
    bounds = (math.log(low), math.log(high))
    found = minimize_scalar(lambda x: cost(token, math.exp(x)), bounds=bounds, method="bounded")
    return math.exp(float(found.x))
