"""The rotations that a picture of a posterior shows: truth, samples, uniform rotations, each with its log density."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64

from aquamam.errors import require
from aquamam.geometry.rotations import as_unit_quat, quat_to_rotvec, random_quat
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.posterior.answers import Answer, answers
from aquamam.posterior.distribution import RotationDistribution
from aquamam.posterior.modes import Mode, angles_deg

TRUTH, SAMPLE, UNIFORM = 0, 1, 2  # where a point comes from


@dataclass(frozen=True, kw_only=True, eq=False)
class Cloud:
    """Points in the paper's order (the truth if it is known, samples, uniform rotations), and the answer."""

    q: Float64[np.ndarray, "n 4"]  # canonical xyzw
    log_density: Float64[np.ndarray, " n"]  # volume pi^2
    source: Int64[np.ndarray, " n"]  # TRUTH, SAMPLE or UNIFORM
    mode: Int64[np.ndarray, " n"]  # of a sample: which mode it belongs to; -1 for others and for none
    answer: Answer

    @property
    def modes(self) -> tuple[Mode, ...]:
        return self.answer.modes

    @property
    def rotvec(self) -> Float64[np.ndarray, "n 3"]:
        """Rotation vectors, in radians, all within a ball of radius pi."""
        return quat_to_rotvec(torch.from_numpy(self.q)).numpy()

    @property
    def has_truth(self) -> bool:
        return bool((self.source == TRUTH).any())

    def to_dict(self) -> dict[str, Any]:
        """The answer and the points as plain values; densities may be -inf, for which JSON has no word."""
        points = {
            "quaternions_xyzw": np.round(self.q, 5).tolist(),
            "log_density": np.round(self.log_density, 3).tolist(),
            "source": self.source.tolist(),
            "mode": self.mode.tolist(),
        }
        return {**self.answer.to_dict(), "points": points}

    def annotated(self) -> list[int]:
        """Up to six points worth a picture: the truth, then samples far from those so far, at the middle of each mode
        or along a curve, and last an unlikely rotation."""
        samples, uniform = (np.flatnonzero(self.source == source) for source in (SAMPLE, UNIFORM))
        chosen, others = [0] if self.has_truth else [], list[int]()
        for k, mode in enumerate(self.modes):
            mine = samples[self.mode[samples] == k]
            if len(mine):
                others.append(mine[_angles(np.array([mode.quaternion]), self.q[mine])[0].argmin()])
                others += [] if mode.kind == "point" else mine.tolist()
        while others and len(chosen) < 6 - (len(uniform) > 0):
            away = _angles(self.q[chosen], self.q[others]).min(0) if chosen else np.full(len(others), 180.0)
            if away.max() < 15:  # degrees: a picture beside would show the same
                break
            chosen.append(int(others[away.argmax()]))
        middle = uniform[np.argsort(self.log_density[uniform])[len(uniform) // 2 :][:1]]
        return [*chosen, *middle.tolist()]


def check_single(posterior: RotationDistribution) -> None:
    """Raise unless there is one image to show."""
    shape = tuple(posterior.batch_shape)
    require(shape == (1,), f"a picture shows the posterior of one image, got a batch {shape}.")


def make_cloud(
    posterior: RotationDistribution,
    *,
    samples: int = 499,
    uniform: int = 500,
    truth: Any = None,
    symmetry: SymmetryGroup | None = None,
    generator: torch.Generator | None = None,
    modes_from: int = 1000,
) -> Cloud:
    """The points of Figure 7 for the posterior of one image, from at least `modes_from` samples.

    truth: a quaternion xyzw, or several. The uniform rotations depend on the generator's seed alone, so that they stay
    where they are when the image changes.
    """
    check_single(posterior)
    given = f"{samples} samples and {uniform} uniform ones"
    require(min(samples, uniform) >= 0, f"numbers of points must not be negative, got {given}.")
    (answer,) = answers(posterior, max(samples, modes_from), symmetry=symmetry, generator=generator)
    assert answer.samples is not None
    assert answer.labels is not None
    own = None if generator is None else torch.Generator().manual_seed(generator.initial_seed())
    anywhere = random_quat((uniform,), generator=own, dtype=torch.float64, device="cpu")
    true = torch.zeros(0, 4) if truth is None else as_unit_quat(truth, "truth").reshape(-1, 4)
    q = torch.cat([true.double(), answer.samples[:samples].cpu(), anywhere])
    with torch.no_grad():
        log_p = posterior.log_prob(q[:, None].to(answer.samples.device))[:, 0].double().cpu().numpy()
    source = np.repeat([TRUTH, SAMPLE, UNIFORM], [len(true), samples, uniform])
    mode = np.full(len(source), -1)
    mode[source == SAMPLE] = answer.labels[:samples]
    return Cloud(q=q.numpy(), log_density=log_p, source=source, mode=mode, answer=answer)


def _angles(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return angles_deg(torch.from_numpy(p), torch.from_numpy(q)).numpy()
