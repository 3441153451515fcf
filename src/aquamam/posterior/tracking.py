"""A rotation followed from frame to frame, by fusion of what is believed with what is seen."""

from typing import Any

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from aquamam.errors import require
from aquamam.geometry.rotations import as_unit_quat, chordal_mean, inverse, multiply
from aquamam.posterior.distribution import RotationDistribution
from aquamam.posterior.fusion import WIDTH, FusedPosterior, fuse, heaviest_balls
from aquamam.posterior.kernel_mixture import KernelMixture, neighbour_distance
from aquamam.posterior.modes import angles_deg

SHIFTS = 5  # steps of mean shift: modes are round, and it settles in two or three


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
    radius_deg: the answer is a mean over the belief this near to it, and its standing is this ball's share of belief.
    lost: the answer jumps to another place when that holds more than so many times the share of the place next to it,
        beyond what the number of samples leaves to chance.
    """

    def __init__(
        self,
        *,
        motion_noise_deg: float | int = 1.0,
        outliers: float | int = 0.01,
        radius_deg: float | int = 15.0,
        lost: float | int = 4.0,
        samples: int = 500,
        generator: torch.Generator | None = None,
    ):
        for good, rule in (
            (0 <= motion_noise_deg <= 90, f"motion_noise_deg must lie in [0, 90], got {motion_noise_deg}; try 1"),
            (0 <= outliers < 1, f"outliers must lie in [0, 1), got {outliers}; try 0.01"),
            (0 < radius_deg <= 90, f"radius_deg must lie in (0, 90], got {radius_deg}; try 15"),
            (lost >= 1, f"lost must be at least 1, got {lost}; try 4"),
            (samples >= 50, f"samples must be at least 50, got {samples}; try 500"),
        ):
            require(good, f"{rule}, the default.")
        self.motion_noise_deg, self.outliers = float(motion_noise_deg), float(outliers)
        self.radius_deg, self.lost, self.samples = float(radius_deg), float(lost), samples
        self.generator = generator
        self.answer: Tensor | None = None  # (B, 4), xyzw; moved along by `predict`
        self.jumped: Bool[Tensor, "batch"] | None = None  # whether the last update's answer left its place
        self.standing: Float64[Tensor, "batch"] | None = None  # the answer's share of the belief
        # the belief is a product of factors: posteriors, and the rotations from the present camera frame to theirs
        self._factors: list[tuple[RotationDistribution, Tensor]] = []
        self._belief: FusedPosterior | None = None

    @property
    def belief(self) -> FusedPosterior:
        """What is believed of the present rotations; its `statements()` tell whether the last frame fitted."""
        require(bool(self._factors), "a tracker believes nothing before its first frame; call update(posterior) first.")
        if self._belief is None:
            posteriors, relative = zip(*self._factors)
            self._belief = fuse(posteriors, relative, conflict="keep", generator=self.generator)
        return self._belief

    def predict(self, relative: Any = None, *, noise_deg: float | int | None = None) -> None:
        """The objects have moved: R_new = relative R_old, quaternions xyzw of either sign, (4,) or (B, 4), in camera
        coordinates; nothing means that they stood still. noise_deg: this step's uncertainty, else the tracker's."""
        noise = self.motion_noise_deg if noise_deg is None else noise_deg
        require(0 <= noise <= 90, f"noise_deg must lie in [0, 90], got {noise}.")
        motion = as_unit_quat([0.0, 0, 0, 1] if relative is None else relative, "relative")
        if self.answer is None:
            return  # nothing is believed yet, and it stays nothing
        fits = motion.shape in ((4,), (1, 4), self.answer.shape)
        require(fits, f"relative must be (4,) or {tuple(self.answer.shape)}, got {tuple(motion.shape)}.")
        motion = motion.to(self.answer.device)
        if noise > 0:
            centres = multiply(motion, self.belief.sample((self.samples,), generator=self.generator).double())
            # one width for all: with narrower kernels where samples crowd, a curve's belief would gather in one place
            width = WIDTH * neighbour_distance(centres).median(0).values.expand(centres.shape[:2])
            width = torch.hypot(width, torch.deg2rad(width.new_tensor(noise)))
            self._add([], KernelMixture(centres, width, self.outliers))
        else:
            self._factors = [(factor, multiply(back, inverse(motion))) for factor, back in self._factors]
        self._belief = None
        self.answer = multiply(motion, self.answer.double()).float()

    def _add(self, before: list[tuple[RotationDistribution, Tensor]], factor: RotationDistribution) -> None:
        """Believe a factor about the present rotations beside those before."""
        here = torch.tensor([0.0, 0, 0, 1], dtype=torch.float64, device=factor.sample((0,)).device)
        self._factors = [*before, (factor, here.expand(factor.batch_shape[0], 4))]
        self._belief = None

    def update(self, posterior: RotationDistribution, *, weight: float | int = 1.0) -> Tensor:
        """Take in a frame's posterior of B objects, and return the answer (B, 4), xyzw.

        weight: exponent of the frame's likelihood; less than 1 for frames that err like the ones before.
        """
        shape = tuple(posterior.batch_shape)
        require(len(shape) == 1, f"a tracker takes a flat batch of objects, got batch {shape}.")
        before, (batch,) = self.answer, shape
        followed = batch if before is None else len(before)
        require(
            followed == batch, f"a tracker follows the same objects, {followed} so far, got {batch}; start another."
        )
        require(0 < weight <= 1, f"weight must lie in (0, 1], got {weight}.")
        if weight != 1:
            posterior = fuse([posterior], weights=[weight], conflict="keep", generator=self.generator)
        self._add(self._factors, posterior)
        q = self.belief.sample((self.samples,), generator=self.generator).double()
        chosen = [self._choose(q[:, i], None if before is None else before[i].double()) for i in range(batch)]
        answer, standing, jumped = zip(*chosen) if chosen else ((q[0, :0],), (), ())
        self.answer = torch.stack(answer).reshape(batch, 4).float()
        self.standing = torch.tensor(standing, dtype=torch.float64)
        self.jumped = torch.tensor(jumped, dtype=torch.bool)
        return self.answer

    def _choose(self, q: Float64[Tensor, "n 4"], before: Tensor | None) -> tuple[Tensor, float, bool]:
        """The answer among samples, its share of them, and whether it left the place of the answer before."""
        centre, share = heaviest_balls(q, self.radius_deg, 1)
        best, best_share = self._settle(q, centre[0])
        if before is None:
            return best, best_share, False
        stay, stay_share = self._settle(q, before)
        # counts of samples err by their square roots, and twice that is no chance
        other, here = max(best_share, float(share[0])) * len(q), stay_share * len(q)
        if here > 0 and other - 2 * other**0.5 <= self.lost * (here + 2 * here**0.5):
            return stay, stay_share, False
        return best, best_share, float(angles_deg(best[None], before[None])) > self.radius_deg

    def _settle(self, q: Float64[Tensor, "n 4"], start: Tensor) -> tuple[Tensor, float]:
        """Mean shift from a start, and the share of samples within the radius of where it ends. Along a curve of
        equally good rotations it stays where it is."""
        where, near = start, q[:0, 0]
        for _ in range(SHIFTS):
            near = angles_deg(where[None], q)[0] <= self.radius_deg
            if not bool(near.any()):
                return start, 0.0
            where = chordal_mean(q[near])
        return where, float(near.double().mean())
