r"""Poses from several pictures: of cameras that stand known ways apart, or of one that follows a part.

Given the pose, pictures are independent, so what they say together is the product of what each says, up to the prior of
poses, which is taken as flat. The product is held as weighted poses: each factor $p_i$ proposes some of its own, and
with the mixture of all as proposal a pose weighs $\prod_i p_i / \frac{1}{n} \sum_i p_i$. What was believed of earlier
frames is such a factor, too: its poses, moved, become kernels.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float64
from torch import Tensor

from aquamam.errors import require
from aquamam.geometry.rotations import geodesic_angle, inverse, multiply, rotate, rotvec_to_quat
from aquamam.posterior.distribution import Generator
from aquamam.posterior.hypotheses import Hypothesis, find_hypotheses
from aquamam.posterior.poses import Pose

OUTLIERS = 0.01  # share of a followed part's belief that may be anywhere that the new picture says


@runtime_checkable
class Poses(Protocol):
    """What `PoseDistribution` and the beliefs here have in common."""

    centre: Tensor

    def log_prob(self, pose: Pose) -> Tensor: ...

    def sample(self, count: int = 1, *, generator: Generator = None) -> Pose: ...


def moved(pose: Pose, by: Pose) -> Pose:
    """The pose in other coordinates, x_new = R x + t."""
    rotation, translation = by.rotation.double(), by.translation.double()
    there = rotate(rotation, pose.translation.double()) + translation
    return Pose(multiply(rotation, pose.rotation.double()), there)


def undone(by: Pose) -> Pose:
    """The inverse change of coordinates."""
    back = inverse(by.rotation.double())
    return Pose(back, -rotate(back, by.translation.double()))


class FusedPoses:
    """Weighted poses (n, batch) in the coordinates of the first camera."""

    def __init__(self, pose: Pose, log_weights: Float64[Tensor, "n batch"], centre: Tensor):
        self.pose, self.centre = pose, centre
        self.weights = log_weights.softmax(0)
        self.contradictory = log_weights.isneginf().all(0)  # no pose is possible in all pictures

    @property
    def effective(self) -> Float64[Tensor, "batch"]:
        """How many poses of equal weight are as good: below 20, ask for more samples, or doubt that it is one part."""
        return 1 / self.weights.square().sum(0)

    def sample(self, count: int = 1, *, generator: Generator = None) -> Pose:
        """Draws, (count, batch, ...)."""
        weights = torch.where(self.contradictory, torch.ones_like(self.weights), self.weights)
        picked = torch.multinomial(weights.T, count, replacement=True, generator=generator).T[..., None]
        rotation, translation = self.pose.rotation, self.pose.translation
        return Pose(rotation.gather(0, picked.expand(-1, -1, 4)), translation.gather(0, picked.expand(-1, -1, 3)))

    def hypotheses(self, samples: int = 1000, *, generator: Generator = None) -> list[list[Hypothesis]]:
        """For each part the modes of its rotations, each a pose with its share and its covariance, best first."""
        drawn = self.sample(samples, generator=generator)
        each = zip(drawn.rotation.unbind(1), drawn.translation.unbind(1))
        return [find_hypotheses(q, t, self.centre) for q, t in each]


def fuse_poses(
    posteriors: Sequence[Poses],
    cameras: Sequence[Pose] | None = None,
    *,
    samples: int = 1000,
    generator: Generator = None,
) -> FusedPoses:
    """What several pictures of the same parts say together.

    cameras: for each picture the change from the first one's coordinates to its own, x_i = R x_1 + t, in the unit of
    the part's mesh; without, all were taken from the same place. samples: poses that each picture proposes.
    """
    require(len(posteriors) > 0, "fusion needs at least one posterior, got none.")
    if cameras is None:
        still = torch.tensor([0.0, 0, 0, 1], dtype=torch.float64), torch.zeros(3, dtype=torch.float64)
        cameras = [Pose(*still)] * len(posteriors)
    came = f"{len(posteriors)} pictures and {len(cameras)} cameras"
    require(len(cameras) == len(posteriors), f"each picture needs its camera, got {came}.")
    drawn = [moved(p.sample(samples, generator=generator), undone(camera)) for p, camera in zip(posteriors, cameras)]
    alike = len({one.rotation.shape for one in drawn}) == 1
    require(alike, "all pictures must show as many parts, in the same order.")
    pose = Pose(*(torch.cat(field) for field in zip(*drawn)))
    log_p = torch.stack([p.log_prob(moved(pose, camera)).double() for p, camera in zip(posteriors, cameras)])
    mixture = log_p.logsumexp(0) - math.log(len(log_p))
    log_weights = torch.where(mixture.isneginf(), -torch.inf, log_p.sum(0) - mixture)
    return FusedPoses(pose, log_weights, posteriors[0].centre)


class _Believed:
    """What is believed of a part that has moved: kernels about equally weighted poses, and a little of what the new
    picture says."""

    def __init__(self, pose: Pose, width: tuple[float, float], new: Poses):
        self.pose, self.width, self.new, self.centre = pose, width, new, new.centre

    def sample(self, count: int = 1, *, generator: Generator = None) -> Pose:
        rotation, translation = (value[:count] for value in self.pose)
        turn, shift = (torch.randn(*translation.shape, generator=generator, dtype=torch.float64) for _ in range(2))
        turn, shift = turn * self.width[0], shift * self.width[1]
        return Pose(multiply(rotvec_to_quat(turn), rotation), translation + shift)

    def log_prob(self, pose: Pose) -> Tensor:
        angle = geodesic_angle(pose.rotation[:, None].double(), self.pose.rotation)
        apart = (pose.translation[:, None] - self.pose.translation).square().sum(-1)
        exponent = -0.5 * (angle.square() / self.width[0] ** 2 + apart / self.width[1] ** 2)
        # per pi^2 for all rotations: a quaternion moves half as far as its rotation rotates
        norm = 3 * math.log(math.tau * self.width[0] * self.width[1]) - 3 * math.log(2)
        kernels = exponent.logsumexp(1) - math.log(len(self.pose.rotation)) - norm
        anywhere = self.new.log_prob(pose).double()
        return torch.logaddexp(kernels + math.log1p(-OUTLIERS), anywhere + math.log(OUTLIERS))


class PoseTracker:
    """Follows the poses of parts from picture to picture.

        tracker = PoseTracker(noise_deg=3, noise=5)            # of the motion between frames, in the mesh's unit
        for photo, box in frames:
            tracker.predict(motion)                            # a Pose: known, guessed, or nothing
            belief = tracker.update(aquamam.poses(model, photo, box, camera))
            best = belief.hypotheses()[0][0]

    noise_deg, noise: standard deviations of the motion about and along each axis, by which it is not known.
    """

    def __init__(self, *, noise_deg: float | int, noise: float | int, samples: int = 500, generator: Generator = None):
        good = 0 < noise_deg <= 90 and 0 < noise < math.inf and samples >= 50
        told = f"got noise_deg={noise_deg}, noise={noise}, samples={samples}"
        require(good, f"noise_deg lies in (0, 90], noise is positive and samples at least 50, {told}.")
        self.width, self.samples, self.generator = (math.radians(noise_deg), float(noise)), samples, generator
        self.belief: FusedPoses | None = None
        self._drawn: Pose | None = None

    def predict(self, motion: Pose | None = None) -> None:
        """The parts have moved, x_new = R x + t in camera coordinates; nothing means that they stood still."""
        if self._drawn is not None and motion is not None:
            self._drawn = moved(self._drawn, motion)

    def update(self, seen: Any) -> FusedPoses:
        """What is believed after one more picture (`aquamam.poses`)."""
        factors = [seen] if self._drawn is None else [_Believed(self._drawn, self.width, seen), seen]
        self.belief = fuse_poses(factors, samples=self.samples, generator=self.generator)
        self._drawn = self.belief.sample(self.samples, generator=self.generator)
        return self.belief
