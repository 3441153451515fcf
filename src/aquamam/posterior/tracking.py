"""A rotation followed from frame to frame, by fusion of what is believed with what is seen."""

from typing import Any

import torch
from jaxtyping import Bool, Float64
from torch import Tensor

from aquamam.errors import InputError
from aquamam.geometry.rotations import as_unit_quat, chordal_mean, inverse, multiply
from aquamam.posterior.distribution import RotationDistribution
from aquamam.posterior.fusion import FusedPosterior, fuse, heaviest_balls
from aquamam.posterior.importance import WIDTH
from aquamam.posterior.kernel_mixture import KernelMixture, crowding
from aquamam.posterior.modes import angles_deg

SHIFTS = 5  # steps of mean shift: modes are round, and it settles in two or three


class Tracker:
    r"""Follows the rotations R of B objects, object to camera, over frames; its answer stays with one of several equivalent poses.

        tracker = Tracker(motion_noise_deg=2)
        for image, turn in frames:
            tracker.predict(turn)              # R_new = turn R_old: known, guessed, or nothing for an object that hardly moves
            answer = tracker.update(model(image))   # (B, 4), xyzw

    motion_noise_deg: standard deviation about each axis of what the motion is not known by. The belief's samples, moved, each become
        a kernel of that width, widened by the spacing between samples. With 0 the motion is exact: nothing is sampled, every frame is
        kept as a factor of the product, and an update takes time in proportion to the frames so far.
    outliers: share of belief that is spread over all rotations at each noisy step, so that a tracker that is wrong finds back.
    radius_deg: the answer is a mean over the belief this near to it, and this ball's share of belief is the answer's standing.
    lost: the answer jumps to another place when that holds more than so many times the share of the place next to the old answer,
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
        if not (0 <= motion_noise_deg <= 90 and 0 <= outliers < 1):
            raise InputError(
                f"motion_noise_deg must lie in [0, 90] and outliers in [0, 1), got {motion_noise_deg} and {outliers}."
            )
        if not (0 < radius_deg <= 90 and lost >= 1):
            raise InputError(
                f"radius_deg must lie in (0, 90] and lost be at least 1, got {radius_deg} and {lost}; 15 and 4 are the defaults."
            )
        if samples < 50:
            raise InputError(f"samples must be at least 50, got {samples}; the default is 500.")
        self.motion_noise_deg, self.outliers = float(motion_noise_deg), float(outliers)
        self.radius_deg, self.lost, self.samples = float(radius_deg), float(lost), samples
        self.generator = generator
        self.answer: Tensor | None = None  # (B, 4), xyzw; moved along by `predict`
        self.jumped: Bool[Tensor, "batch"] | None = None  # whether the last update's answer left its place
        self.standing: Float64[Tensor, "batch"] | None = None  # the answer's share of the belief
        # the belief is a product: factors, and the rotations that take the present camera coordinates to theirs
        self._factors: list[RotationDistribution] = []
        self._turns: list[Tensor] = []
        self._belief: FusedPosterior | None = None

    @property
    def belief(self) -> FusedPosterior:
        """What is believed of the present rotations, as a posterior; its `statements()` tell whether the last frame fitted."""
        if not self._factors:
            raise InputError("a tracker believes nothing before its first frame; call update(posterior) first.")
        if self._belief is None:
            self._belief = fuse(self._factors, self._turns, conflict="keep", generator=self.generator)
        return self._belief

    def predict(self, relative: Any = None, *, noise_deg: float | int | None = None) -> None:
        """The objects have turned: R_new = relative R_old, quaternions xyzw of either sign, (4,) or (B, 4), in camera coordinates;
        nothing means that they stood still. noise_deg: this step's uncertainty, else the tracker's."""
        noise = self.motion_noise_deg if noise_deg is None else noise_deg
        if not 0 <= noise <= 90:
            raise InputError(f"noise_deg must lie in [0, 90], got {noise}.")
        turn = as_unit_quat([0.0, 0, 0, 1] if relative is None else relative, "relative")
        if not self._factors:
            return  # nothing is believed yet, and it stays nothing
        batch, device = self._factors[0].batch_shape[0], self._turns[0].device
        if turn.shape not in ((4,), (1, 4), (batch, 4)):
            raise InputError(f"relative must be (4,) or ({batch}, 4), got {tuple(turn.shape)}.")
        turn = turn.to(device)
        if noise > 0:
            centres = multiply(turn, self.belief.sample((self.samples,), generator=self.generator).double())
            width = torch.hypot(WIDTH * crowding(centres), torch.tensor(noise, device=device).double().deg2rad())
            self._factors = [KernelMixture(centres, width, self.outliers)]
            self._turns = [torch.tensor([0.0, 0, 0, 1], device=device).double().expand(batch, 4)]
        else:
            self._turns = [multiply(back, inverse(turn)) for back in self._turns]
        self._belief = None
        assert self.answer is not None
        self.answer = multiply(turn, self.answer.double()).float()

    def update(self, posterior: RotationDistribution, *, weight: float | int = 1.0) -> Tensor:
        """Take in a frame's posterior of B objects, and return the answer (B, 4), xyzw.

        weight: exponent of the frame's likelihood; less than 1 for frames that err like the ones before.
        """
        if len(posterior.batch_shape) != 1:
            raise InputError(f"a tracker takes a flat batch of objects, got batch {tuple(posterior.batch_shape)}.")
        if self._factors and self._factors[0].batch_shape != posterior.batch_shape:
            raise InputError(
                f"a tracker follows the same objects in every frame, {self._factors[0].batch_shape[0]} so far, "
                f"got {posterior.batch_shape[0]}; start another one."
            )
        if not 0 < weight <= 1:
            raise InputError(f"weight must lie in (0, 1], got {weight}.")
        if weight != 1:
            posterior = fuse([posterior], weights=[weight], conflict="keep", generator=self.generator)
        self._factors.append(posterior)
        drawn = posterior.sample((0,))
        here = torch.tensor([0.0, 0, 0, 1], device=drawn.device).double().expand(posterior.batch_shape[0], 4)
        self._turns.append(here)
        self._belief = None
        q = self.belief.sample((self.samples,), generator=self.generator).double()
        before = self.answer
        chosen = [self._choose(q[:, i], None if before is None else before[i].double()) for i in range(q.shape[1])]
        self.answer = torch.stack([c for c, _, _ in chosen]).float() if chosen else q[0].float()
        self.standing = torch.tensor([s for _, s, _ in chosen], dtype=torch.float64)
        self.jumped = torch.tensor([j for _, _, j in chosen], dtype=torch.bool)
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
        away = float(angles_deg(best[None], before[None])) > self.radius_deg
        return best, best_share, away

    def _settle(self, q: Float64[Tensor, "n 4"], start: Tensor) -> tuple[Tensor, float]:
        """Mean shift from a start, and the share of samples within the radius of where it ends. Along a curve of equally good
        rotations it stays where it is."""
        where, near = start, q[:0, 0]
        for _ in range(SHIFTS):
            near = angles_deg(where[None], q)[0] <= self.radius_deg
            if not bool(near.any()):
                return start, 0.0
            where = chordal_mean(q[near])
        return where, float(near.double().mean())
