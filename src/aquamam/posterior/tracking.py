r"""A rotation or a pose followed from frame to frame, by fusion of what is believed with what is seen; and poses from
cameras that stand known ways apart.

Given the pose, pictures are independent, so what they say together is the product of what each says, up to the prior of
poses, which is taken as flat. The product is held as weighted poses: each factor $p_i$ proposes some of its own, and
with the mixture of all as proposal a pose weighs $\prod_i p_i / \frac{1}{n} \sum_i p_i$. What was believed of earlier
frames is such a factor, too: its poses, moved, become kernels.
"""

import math
from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from aquamam.errors import require
from aquamam.geometry.directional import draw_category, draw_normal
from aquamam.geometry.rotations import (
    IDENTITY,
    as_unit_quat,
    chordal_mean,
    geodesic_angle,
    inverse,
    multiply,
    rotvec_to_quat,
)
from aquamam.posterior.distribution import Generator, RotationDistribution
from aquamam.posterior.fusion import WIDTH, FusedPosterior, fuse, heaviest_balls
from aquamam.posterior.hypotheses import Hypothesis, find_hypotheses
from aquamam.posterior.kernel_mixture import KernelMixture, neighbour_distance
from aquamam.posterior.modes import angles_deg
from aquamam.posterior.poses import Pose

RADIUS_DEG = 15.0  # of the place of a tracker's answer
SHIFTS = 5  # steps of mean shift: modes are round, and it settles in two or three
OUTLIERS = 0.01  # share of a followed part's belief that may be anywhere that the new picture says


class Tracker:
    r"""Follows the rotations R of B objects, object to camera; its answer stays with one of several equivalent poses.

        tracker = Tracker(motion_noise_deg=2)
        for image, motion in frames:
            tracker.predict(motion)                 # R_new = motion R_old: known, guessed, or nothing
            answer = tracker.update(model(image))   # (B, 4), xyzw

    motion_noise_deg: standard deviation about each axis of what the motion is not known by. Samples of the belief,
        moved, become kernels of that width, widened by the usual spacing between samples. With 0 the motion is exact,
        every frame is kept as a factor, and an update takes time in proportion to the frames so far.
    outliers: share of belief that is spread over all rotations at each noisy step, so that a wrong tracker finds back.
    lost: the answer, a mean over the belief within 15 degrees of it, jumps to another place when that holds more than
        so many times the share of the place next to it, beyond what the number of samples leaves to chance.
    """

    def __init__(
        self,
        *,
        motion_noise_deg: float | int = 1.0,
        outliers: float | int = 0.01,
        lost: float | int = 4.0,
        samples: int = 500,
        generator: Generator = None,
    ):
        for good, rule in (
            (0 <= motion_noise_deg <= 90, f"motion_noise_deg must lie in [0, 90], got {motion_noise_deg}; try 1"),
            (0 <= outliers < 1, f"outliers must lie in [0, 1), got {outliers}; try 0.01"),
            (lost >= 1, f"lost must be at least 1, got {lost}; try 4"),
            (samples >= 50, f"samples must be at least 50, got {samples}; try 500"),
        ):
            require(good, f"{rule}, the default.")
        self.motion_noise_deg, self.outliers, self.lost = motion_noise_deg, outliers, lost
        self.samples, self.generator = samples, generator
        self.answer: Tensor | None = None  # (B, 4), xyzw; moved along by `predict`
        self.jumped: Bool[Tensor, "batch"] | None = None  # whether the last update's answer left its place
        # the belief is a product of factors: posteriors, and the rotations from the present camera frame to theirs
        self._factors: list[tuple[RotationDistribution, Tensor]] = []
        self._belief: FusedPosterior | None = None  # of these factors, once it is asked for

    @property
    def belief(self) -> FusedPosterior:
        """What is believed of the present rotations; its `statements()` tell whether the last frame fitted."""
        require(bool(self._factors), "a tracker believes nothing before its first frame; call update(posterior) first.")
        if self._belief is None:
            posteriors, relative = zip(*self._factors)
            self._belief = fuse(posteriors, torch.stack(relative), conflict="keep", generator=self.generator)
        return self._belief

    def predict(self, relative: Any = None) -> None:
        """The objects have moved: R_new = relative R_old, quaternions xyzw of either sign, (4,) or (B, 4), in camera
        coordinates; nothing means that they stood still."""
        motion = as_unit_quat(IDENTITY if relative is None else relative, "relative")
        if self.answer is None:
            return  # nothing is believed yet, and it stays nothing
        fits = motion.shape in ((4,), (1, 4), self.answer.shape)
        require(fits, f"relative must be (4,) or {tuple(self.answer.shape)}, got {tuple(motion.shape)}.")
        motion = motion.to(self.answer.device)
        if self.motion_noise_deg > 0:
            centres = multiply(motion, self.belief.sample((self.samples,), generator=self.generator).double())
            # one width for all: with narrower kernels where samples crowd, a curve's belief would gather in one place
            width = WIDTH * neighbour_distance(centres).median(0).values.expand(centres.shape[:2])
            width = torch.hypot(width, torch.deg2rad(width.new_tensor(self.motion_noise_deg)))
            self._factors = [(KernelMixture(centres, width, self.outliers), IDENTITY.expand(self.answer.shape))]
        else:
            self._factors = [(factor, multiply(back, inverse(motion.cpu()))) for factor, back in self._factors]
        self._belief = None
        self.answer = multiply(motion, self.answer.double()).float()

    def update(self, posterior: RotationDistribution, *, weight: float | int = 1.0) -> Tensor:
        """Take in a frame's posterior of B objects, and return the answer (B, 4), xyzw.

        weight: exponent of the frame's likelihood; less than 1 for frames that err like the ones before.
        """
        shape, before = tuple(posterior.batch_shape), self.answer
        require(len(shape) == 1, f"a tracker takes a flat batch of objects, got batch {shape}.")
        batch, followed = shape[0], shape[0] if before is None else len(before)
        same = f"a tracker follows the same objects, {followed} so far, got {batch}; start another."
        require(followed == batch, same)
        require(0 < weight <= 1, f"weight must lie in (0, 1], got {weight}.")
        if weight != 1:
            posterior = fuse([posterior], weights=[weight], conflict="keep", generator=self.generator)
        self._factors, self._belief = [*self._factors, (posterior, IDENTITY.expand(batch, 4))], None
        q = self.belief.sample((self.samples,), generator=self.generator).double()
        self.answer, self.jumped = torch.empty_like(q[0]).float(), torch.empty(batch, dtype=torch.bool)
        for i, mine in enumerate(q.unbind(1)):
            self.answer[i], self.jumped[i] = self._choose(mine, None if before is None else before[i].double())
        return self.answer

    def _choose(self, q: Float64[Tensor, "n 4"], before: Tensor | None) -> tuple[Tensor, bool]:
        """The answer among samples, and whether it left the place of the answer before."""
        centre, share = heaviest_balls(q, RADIUS_DEG, 1)
        best, best_share = settled(q, centre[0])
        if before is None:
            return best, False
        stay, stay_share = settled(q, before)
        # counts of samples err by their square roots, and twice that is no chance
        other, here = max(best_share, float(share[0])) * len(q), stay_share * len(q)
        if here > 0 and other - 2 * other**0.5 <= self.lost * (here + 2 * here**0.5):
            return stay, False
        return best, float(angles_deg(best[None], before[None])) > RADIUS_DEG


def settled(q: Float64[Tensor, "n 4"], start: Float64[Tensor, "4"]) -> tuple[Tensor, float]:
    """Mean shift from a start, and the share of samples within the radius of where it ends. Along a curve of equally
    good rotations it stays where it is."""
    where, near = start, q[:0, 0]
    for _ in range(SHIFTS):
        near = angles_deg(where[None], q)[0] <= RADIUS_DEG
        if not bool(near.any()):
            return start, 0.0
        where = chordal_mean(q[near])
    return where, float(near.double().mean())


# --- poses ------------------------------------------------------------------------------------------------------------


@runtime_checkable
class Poses(Protocol):
    """What `PoseDistribution` and the beliefs here have in common."""

    centre: Tensor

    def log_prob(self, pose: Pose) -> Tensor: ...

    def sample(self, count: int = 1, *, generator: Generator = None) -> Pose: ...


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
        picked = draw_category(weights.log().T, count, generator)[..., None]
        return Pose(*(value.take_along_dim(picked, 0) for value in self.pose))

    def hypotheses(self, samples: int = 1000, *, generator: Generator = None) -> list[list[Hypothesis]]:
        """For each part the modes of its rotations, each a pose with its share and its covariance, best first."""
        each = zip(*(value.unbind(1) for value in self.sample(samples, generator=generator)))
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
    cameras = [Pose(IDENTITY, torch.zeros_like(IDENTITY[:3]))] * len(posteriors) if cameras is None else cameras
    came = f"{len(posteriors)} pictures and {len(cameras)} cameras"
    require(len(cameras) == len(posteriors), f"each picture needs its camera, got {came}.")
    drawn = [p.sample(samples, generator=generator).moved(by.undone()) for p, by in zip(posteriors, cameras)]
    alike = len({one.rotation.shape for one in drawn}) == 1
    require(alike, "all pictures must show as many parts, in the same order.")
    pose = Pose(*map(torch.cat, zip(*drawn)))
    log_p = torch.stack([p.log_prob(pose.moved(by)).double() for p, by in zip(posteriors, cameras)])
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
        turn, shift = (draw_normal(tuple(translation.shape), generator, translation.device) for _ in range(2))
        turn, shift = turn * self.width[0], shift * self.width[1]
        return Pose(multiply(rotvec_to_quat(turn), rotation), translation + shift)

    def log_prob(self, pose: Pose) -> Tensor:
        turn, shift = self.width
        angle = geodesic_angle(pose.rotation[:, None].double(), self.pose.rotation)
        apart = (pose.translation[:, None] - self.pose.translation).square().sum(-1)
        exponent = -0.5 * (angle.square() / turn**2 + apart / shift**2)
        # per pi^2 for all rotations: a quaternion moves half as far as its rotation rotates
        norm = 3 * math.log(math.tau * turn * shift) - 3 * math.log(2)
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
            self._drawn = self._drawn.moved(motion)

    def update(self, seen: Any) -> FusedPoses:
        """What is believed after one more picture (`aquamam.poses`)."""
        factors = [seen] if self._drawn is None else [_Believed(self._drawn, self.width, seen), seen]
        self.belief = fuse_poses(factors, samples=self.samples, generator=self.generator)
        self._drawn = self.belief.sample(self.samples, generator=self.generator)
        return self.belief
