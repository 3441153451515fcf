r"""Figures that say how good distributions and predictions of rotations are: pure functions on tensors.

Quaternions are xyzw of either sign, angles are radians, log densities with respect to volume pi^2. Where an object
looks the same under several rotations, all of them are true: `truths` lists them on an axis before the last, or a
`SymmetryGroup` makes them from one.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from scipy.special import kolmogorov
from torch import Tensor

from aquamam.errors import InputError
from aquamam.geometry.rotations import geodesic_angle
from aquamam.geometry.symmetry import SymmetryGroup

# --- likelihoods ------------------------------------------------------------------------------------------------------


def image_log_likelihood(
    log_p: Float[Tensor, "equivalents *batch"], counts: Int[Tensor, "*batch"] | None = None
) -> Float[Tensor, "*batch"]:
    """Mean log density of an image's equivalent truths, which is what is then averaged over images.

    Of each column the first `counts` are truths and the rest padding; without `counts` all are.
    """
    if counts is None:
        return log_p.mean(0)
    number = torch.arange(len(log_p), device=log_p.device).reshape(-1, *[1] * counts.ndim)
    return torch.where(number < counts, log_p, 0).sum(0) / counts  # where, not a product: padding may be -inf


# --- errors of predictions --------------------------------------------------------------------------------------------


def rotation_error(
    q: Float[Tensor, "*#batch 4"], truths: Float[Tensor, "*#batch equivalents 4"], group: SymmetryGroup | None = None
) -> Float[Tensor, "..."]:
    """Geodesic angle from a rotation to the nearest of its truths; with a group, also to the nearest of all that look
    like the first truth.

    A group is exact where a list only samples a continuous symmetry. Repeated truths change nothing.
    """
    listed = geodesic_angle(q.unsqueeze(-2), truths).amin(-1)
    return listed if group is None else torch.minimum(listed, group.distance(truths[..., 0, :], q))


def share_within(error: Float[Tensor, "*batch"], degrees: float | int) -> Float[Tensor, ""]:
    """Acc@degrees: the share of errors (radians) of at most so many degrees."""
    return (error <= math.radians(degrees)).double().mean()


def median(values: Float[Tensor, "n"]) -> Float[Tensor, ""]:
    """The middle value, or the mean of the two in the middle (torch.median takes the lower one)."""
    return values.double().quantile(0.5)


def class_mean(values: Float[Tensor, "n"], classes: Int[Tensor, "n"], figure=torch.mean) -> Float[Tensor, ""]:
    """A figure of each class, then their mean: classes count alike however many images they have."""
    return torch.stack([figure(values[classes == c]) for c in classes.unique()]).mean()


def spread(
    samples: Float[Tensor, "samples *#batch 4"],
    truths: Float[Tensor, "*#batch equivalents 4"],
    group: SymmetryGroup | None = None,
) -> Float[Tensor, "..."]:
    """MAAD: the expected angle to the nearest truth under the distribution that the samples come from."""
    return rotation_error(samples, truths, group).mean(0)


def least_expected_error(samples: Float[Tensor, "samples *batch 4"]) -> Float[Tensor, "*batch 4"]:
    """Of an image's samples the one whose mean geodesic angle to all of them is smallest."""
    count, batch = len(samples), samples.shape[1:-1]
    if count == 0:
        raise InputError("the sample of least expected error needs at least one sample, got none.")
    q = samples.reshape(count, -1, 4).transpose(0, 1)  # (images, samples, 4)
    # |p · q| orders pairs as the angle does and is one product of matrices; what acos loses near zero is under 0.1
    # degrees
    expected = torch.acos((q @ q.mT).abs().clamp_max(1)).mean(-1)
    best = expected.argmin(-1)
    return q[torch.arange(len(q), device=q.device), best].reshape(*batch, 4)


# --- calibration ------------------------------------------------------------------------------------------------------


class Coverage(NamedTuple):
    """How many truths lie in the highest-density regions of each level, and the binomial standard errors."""

    share: Float[Tensor, "levels"]
    standard_error: Float[Tensor, "levels"]


def ks_uniform(u: Float[Tensor, "n"]) -> Float[Tensor, ""]:
    r"""Kolmogorov-Smirnov distance of values in [0, 1] from uniform, $\sup_x |F_n(x) - x|$."""
    if u.numel() == 0:
        raise InputError("a Kolmogorov-Smirnov distance needs at least one value, got none.")
    x = u.double().sort().values
    step = torch.arange(len(x) + 1, dtype=torch.float64, device=x.device) / len(x)
    return torch.maximum((step[1:] - x).max(), (x - step[:-1]).max())


def ks_p_value(distance: float, n: int) -> float:
    """Chance of so large a distance from uniform with n truly uniform values (asymptotic, with Stephens' correction for
    small n)."""
    root = math.sqrt(n)
    return float(kolmogorov(distance * (root + 0.12 + 0.11 / root)))


def coverage(pit: Float[Tensor, "n"], levels: Sequence[float]) -> Coverage:
    """Share of truths inside the highest-density regions of these levels."""
    inside = pit.double() <= torch.tensor(levels, dtype=torch.float64, device=pit.device)[:, None]
    share = inside.double().mean(-1)
    return Coverage(share, (share * (1 - share) / pit.numel()).sqrt())


# --- whole poses, as the BOP challenge measures them ------------------------------------------------------------------


class Poses(NamedTuple):
    """Rotation matrices and translations, x_cam = R x + t, OpenCV camera for `mspd`."""

    R: Float[Tensor, "*batch 3 3"]
    t: Float[Tensor, "*batch 3"]

    def move(self, points: Float[Tensor, "points 3"]) -> Float[Tensor, "*batch points 3"]:
        return points @ self.R.mT + self.t.unsqueeze(-2)


def mssd(points: Float[Tensor, "points 3"], estimate: Poses, truth: Poses, symmetries: Poses) -> Float[Tensor, ""]:
    """Maximum symmetry-aware surface distance: over symmetries the least, over points the largest distance.

    `symmetries` (S,) move the object onto itself in its own frame, the identity among them.
    """
    apart = estimate.move(points) - _all_true(points, truth, symmetries)
    return apart.norm(dim=-1).amax(-1).amin(-1)


def mspd(
    points: Float[Tensor, "points 3"], estimate: Poses, truth: Poses, symmetries: Poses, K: Float[Tensor, "3 3"]
) -> Float[Tensor, ""]:
    """Maximum symmetry-aware projection distance in pixels of the camera K."""
    apart = _project(estimate.move(points), K) - _project(_all_true(points, truth, symmetries), K)
    return apart.norm(dim=-1).amax(-1).amin(-1)


def add(points: Float[Tensor, "points 3"], estimate: Poses, truth: Poses) -> Float[Tensor, ""]:
    """Average distance of corresponding points."""
    return (estimate.move(points) - truth.move(points)).norm(dim=-1).mean()


def add_s(points: Float[Tensor, "points 3"], estimate: Poses, truth: Poses, chunk: int = 1024) -> Float[Tensor, ""]:
    """Average distance from each true point to the nearest estimated one."""
    estimated = estimate.move(points)
    nearest = [torch.cdist(part, estimated).amin(-1) for part in truth.move(points).split(chunk)]
    return torch.cat(nearest).mean()


def _all_true(points: Tensor, truth: Poses, symmetries: Poses) -> Tensor:
    """The true points under every symmetry, (S, points, 3)."""
    return symmetries.move(points) @ truth.R.mT + truth.t


def _project(x: Tensor, K: Tensor) -> Tensor:
    seen = x @ K.mT
    return seen[..., :2] / seen[..., 2:]
