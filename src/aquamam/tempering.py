"""Temperatures: one number for each head that makes held-out images likelier. Folded into the weights, so nothing else changes.

A network that was trained for a short while is often less sure than its errors allow. Scaling the logits of a head cannot change which
bin is the likeliest, only how sharp its distribution is.
"""

from collections.abc import Callable

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor

from aquamam.datasets.base import RotationDataset
from aquamam.datasets.stream import one_pass
from aquamam.model import AQuaMaM


def temper(model: AQuaMaM, dataset: RotationDataset, limit: int = 1000) -> dict[str, float]:
    """Sharpen or flatten each head of `model` in place to the highest likelihood on held-out data; returns the factors."""
    first, rest = _logits(model, dataset, limit)
    factors = {}
    if model.cells.chart.count > 1:
        factors["first_head"] = _best(lambda s: _log_likelihood(first[0] * s, first[1]))
        factors["head"] = _best(lambda s: _log_likelihood(rest[0] * s, rest[1]))
    else:  # one head for all three tokens
        factors["head"] = _best(
            lambda s: _log_likelihood(first[0] * s, first[1]) + 2 * _log_likelihood(rest[0] * s, rest[1])
        )
    with torch.no_grad():
        for name, factor in factors.items():
            head: torch.nn.Linear = getattr(model, name)
            head.weight.mul_(factor)
            head.bias.mul_(factor)
    return factors


def _logits(
    model: AQuaMaM, dataset: RotationDataset, limit: int
) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Logits and labels of the first and of the later tokens, illegal bins far below."""
    cells, firsts, rests = model.cells, [], []
    for batch in one_pass(dataset, 100, limit=limit):
        point = cells.chart.split(batch.rotations[:, 0])
        cell = cells.locate(point)
        with torch.inference_mode():
            prefix = model.encode(batch.images)
            seen = cells.seen(point.u[:, :2], cell[:, :2]).float()
            logits, _ = prefix.rest(point.chart[None], seen[None])
            legal = torch.stack([cells.legal(cell[:, :1]), cells.legal(cell[:, :2])], 1)
            firsts.append((prefix.first(), point.chart * cells.bins + cell[:, 0]))
            rests.append((logits[0].masked_fill(~legal, -1e30).flatten(0, 1), cell[:, 1:].flatten()))
    return _joined(firsts), _joined(rests)


def _joined(parts: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    return torch.cat([a for a, _ in parts]), torch.cat([b for _, b in parts])


def _log_likelihood(logits: Tensor, labels: Tensor) -> float:
    return -float(torch.nn.functional.cross_entropy(logits, labels))


def _best(log_likelihood: Callable[[float], float]) -> float:
    """The scale between 1/8 and 8 with the highest likelihood, which is concave in it."""
    found = minimize_scalar(lambda s: -log_likelihood(float(s)), bounds=(0.125, 8.0), method="bounded")
    return float(found.x)
