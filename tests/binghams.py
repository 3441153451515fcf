"""Posteriors with known modes: mixtures of Bingham distributions, whose densities and samples are exact."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from aquamam.baselines.bingham import BinghamMixture
from aquamam.geometry.rotations import rotvec_to_quat

Widths = float | tuple[float, float, float]


def bingham_posterior(centres: Tensor, widths: Sequence[Widths], weights: Sequence[float] | None = None):
    """One image's posterior. Widths: standard deviations in degrees about the object's x, y and z; 0 is any angle."""
    centres = torch.as_tensor(centres, dtype=torch.float64)
    each = [(w, w, w) if isinstance(w, float) else w for w in widths]
    z = torch.tensor([[*(-2 / math.radians(w) ** 2 if w else 0.0 for w in row), 0.0] for row in each]).double()
    weight = torch.tensor(list(weights or [1.0] * len(centres)), dtype=torch.float64)
    still = torch.tensor([0.0, 0, 0, 1], dtype=torch.float64).expand_as(centres)
    return BinghamMixture(
        log_weight=(weight / weight.sum()).log()[None], left=centres[None], right=still[None], z=z[None]
    )


def turns(count: int, axis: tuple[float, float, float] = (0.0, 0.0, 1.0)) -> Tensor:
    """The rotations by multiples of 360 / count degrees about an axis, xyzw."""
    angle = torch.arange(count, dtype=torch.float64)[:, None] * (2 * math.pi / count)
    return rotvec_to_quat(angle * torch.tensor(axis, dtype=torch.float64))


def four_fives() -> BinghamMixture:
    """What a view of nothing but a die's five should give."""
    return bingham_posterior(turns(4), [2.0] * 4)


def cylinder() -> BinghamMixture:
    """What a cylinder about z should give: two curves, since it may also stand on its head."""
    return bingham_posterior(turns(2, (1.0, 0.0, 0.0)), [(2.0, 2.0, 0.0)] * 2)
