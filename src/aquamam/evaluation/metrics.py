"""Figures that say how good distributions and predictions of rotations are: pure functions on tensors.

Quaternions are xyzw of either sign, angles are radians, log densities with respect to volume pi^2. Where an object
looks the same under several rotations, all of them are true: `truths` lists them on an axis before the last, or a
`SymmetryGroup` makes them from one.
"""

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from aquamam.geometry.rotations import geodesic_angle
from aquamam.geometry.symmetry import SymmetryGroup


def image_log_likelihood(
    log_p: Float[Tensor, "equivalents *batch"], counts: Int[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    """Mean log density of an image's equivalent truths: of each column the first `counts`, the rest is padding."""
    number = torch.arange(len(log_p), device=log_p.device).reshape(-1, *[1] * counts.ndim)
    return torch.where(number < counts, log_p, 0).sum(0) / counts  # where, not a product: padding may be -inf


def rotation_error(
    q: Float[Tensor, "*#batch 4"], truths: Float[Tensor, "*#batch equivalents 4"], group: SymmetryGroup | None = None
) -> Float[Tensor, "..."]:
    """Geodesic angle to the nearest truth; with a group, also to the nearest rotation that looks like the first truth.

    A group is exact where a list only samples a continuous symmetry. Repeated truths change nothing.
    """
    listed = geodesic_angle(q.unsqueeze(-2), truths).amin(-1)
    return listed if group is None else torch.minimum(listed, group.distance(truths[..., 0, :], q))


def coverage(
    pit: Float[Tensor, "n"], levels: Sequence[float]
) -> tuple[Float[Tensor, "levels"], Float[Tensor, "levels"]]:
    """Share of truths inside the highest-density regions of these levels, and its binomial standard errors."""
    inside = pit.double() <= torch.tensor(levels, dtype=torch.float64, device=pit.device)[:, None]
    share = inside.double().mean(-1)
    return share, (share * (1 - share) / pit.numel()).sqrt()
