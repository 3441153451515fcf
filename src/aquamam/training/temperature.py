"""Temperatures and the floor, found on held-out images: one number a token by which its logits are divided, and the
share of the uniform distribution in every posterior.

A network is often less sure, or surer, than its errors allow. Dividing the logits of a token cannot change which bin is
the likeliest, only how sharp its distribution is. The floor is what is left for images that the network gets wrong.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Int64
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn import functional as F

from aquamam.data.base import RotationDataset
from aquamam.data.stream import one_pass
from aquamam.geometry.cells import Cells
from aquamam.geometry.rotations import LOG_UNIFORM
from aquamam.network.model import AQuaMaM
from aquamam.posterior import windows

LEAST_FLOOR = 1e-3  # held-out renders cannot say how often a photograph is beyond the network; this costs 0.001 nats


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


def temper(model: AQuaMaM, dataset: RotationDataset, limit: int = 1000) -> tuple[float, ...]:
    """Find the temperatures and the floor of `model` with the highest likelihood of held-out images, in place; returns
    by how much the temperatures changed."""
    changes = tuple(_best_temperature(token, model.cells) for token in held_out_tokens(model, dataset, limit))
    before = model.calibration.temperatures
    temperatures = (*(round(old * new, 6) for old, new in zip(before, changes)), *before[len(changes) :])
    # scores are those of the posteriors as they were
    model.calibration = replace(model.calibration, temperatures=temperatures, floor=0.0, scores=None)
    model.calibration = replace(model.calibration, floor=_best_floor(model, dataset, limit))
    return changes


def held_out_tokens(model: AQuaMaM, dataset: RotationDataset, limit: int) -> list[HeldOutToken]:
    """The tokens of the pictured rotation of each image, and of its window where the model tells poses."""
    cells, parts = model.cells, []
    for batch in one_pass(dataset, 100, limit=limit):
        batch = batch.to(model.device)
        point = cells.chart.split(batch.rotations[:, 0])
        cell = cells.locate(point)
        labels, seen = cell, cells.seen(point.u[:, :2], cell[:, :2])
        if model.config.pose and batch.windows is not None:
            place = windows.locate(batch.windows, cells.bins)
            labels = torch.cat([cell, place], -1)
            seen = torch.cat([seen, cells.centre(cell[:, 2:]), windows.centre(place[:, :2], cells.bins)], -1)
        with torch.inference_mode():
            prefix = model.encode(batch.images)
            logits, _ = prefix.rest(point.chart[None], seen.float()[None])
            first = HeldOutToken(prefix.first(), cell[:, :0], point.chart * cells.bins + cell[:, 0])
            later = [
                HeldOutToken(logits[0, :, c - 1], cell[:, : c if c < 3 else 0], labels[:, c])
                for c in range(1, labels.shape[1])
            ]
            parts.append([first, *later])
    return [HeldOutToken(*(torch.cat(field) for field in zip(*token))) for token in zip(*parts)]


def _best_temperature(token: HeldOutToken, cells: Cells) -> float:
    """The temperature of least cost, which is convex in its inverse."""
    bounds = (-math.log(8), math.log(8))
    found = minimize_scalar(lambda x: token.cost(cells, math.exp(x)), bounds=bounds, method="bounded")
    return math.exp(float(found.x))


@torch.no_grad()
def _best_floor(model: AQuaMaM, dataset: RotationDataset, limit: int) -> float:
    """The share of the uniform distribution with the highest likelihood of held-out images."""
    batches = (batch.to(model.device) for batch in one_pass(dataset, 100, limit=limit))
    log_p = torch.cat([model(batch.images).log_prob(batch.rotations[:, 0]).double() for batch in batches])

    def cost(x: float) -> float:
        uniform = log_p.new_full((), LOG_UNIFORM + x)
        return -float(torch.logaddexp(log_p + math.log1p(-math.exp(x)), uniform).mean())

    found = minimize_scalar(cost, bounds=(math.log(LEAST_FLOOR), math.log(0.5)), method="bounded")
    return round(math.exp(float(found.x)), 6)
