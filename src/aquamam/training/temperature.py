"""Temperatures: one number a token by which its logits are divided, found on held-out images.

A network is often less sure, or surer, than its errors allow. Dividing the logits of a token cannot change which bin is
the likeliest, only how sharp its distribution is.
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
from aquamam.network.model import AQuaMaM


class HeldOutToken(NamedTuple):
    """Logits of one of the three tokens on held-out images, given the true tokens before it, and what came."""

    logits: Float[Tensor, "n bins"]
    before: Int64[Tensor, "n c"]  # bins of the tokens before it
    labels: Int64[Tensor, "n"]

    def cost(self, cells: Cells, temperature: float) -> float:
        """Mean of minus the log-probability of what came."""
        logits = self.logits / temperature
        if self.before.shape[1]:  # every first token is legal
            logits = cells.restrict(logits, self.before)
        return float(F.cross_entropy(logits, self.labels))


def temper(model: AQuaMaM, dataset: RotationDataset, limit: int = 1000) -> tuple[float, ...]:
    """Find the temperatures of `model` with the highest likelihood of held-out images, in place; returns by how much
    they changed."""
    changes = tuple(_best_temperature(token, model.cells) for token in held_out_tokens(model, dataset, limit))
    before = model.calibration.temperatures
    temperatures = (*(round(old * new, 6) for old, new in zip(before, changes)), *before[len(changes) :])
    # scores are those of the posteriors as they were
    model.calibration = replace(model.calibration, temperatures=temperatures, scores=None)
    return changes


def held_out_tokens(model: AQuaMaM, dataset: RotationDataset, limit: int) -> list[HeldOutToken]:
    """The first, second and third token of the pictured rotation of each image."""
    cells, parts = model.cells, []
    for batch in one_pass(dataset, 100, limit=limit):
        point = cells.chart.split(batch.rotations[:, 0].to(model.start.device))
        cell = cells.locate(point)
        with torch.inference_mode():
            prefix = model.encode(batch.images)
            logits, _ = prefix.rest(point.chart[None], cells.seen(point.u[:, :2], cell[:, :2]).float()[None])
            first = HeldOutToken(prefix.first(), cell[:, :0], point.chart * cells.bins + cell[:, 0])
            later = [HeldOutToken(logits[0, :, c - 1], cell[:, :c], cell[:, c]) for c in (1, 2)]
            parts.append([first, *later])
    return [HeldOutToken(*(torch.cat(field) for field in zip(*token))) for token in zip(*parts)]


def _best_temperature(token: HeldOutToken, cells: Cells) -> float:
    """The temperature of least cost, which is convex in its inverse."""
    bounds = (-math.log(8), math.log(8))
    found = minimize_scalar(lambda x: token.cost(cells, math.exp(x)), bounds=bounds, method="bounded")
    return math.exp(float(found.x))
