"""The rotations that a picture of a posterior shows: truth, samples, uniform rotations, each with its log density."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int64

from aquamam.errors import InputError
from aquamam.geometry.rotations import as_unit_quat, quat_to_rotvec, random_quat
from aquamam.posterior.distribution import RotationDistribution
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.posterior.answers import Folded, with_densities
from aquamam.posterior.modes import Mode, angles_deg, cluster, describe

TRUTH, SAMPLE, UNIFORM = 0, 1, 2  # where a point comes from


@dataclass(frozen=True, kw_only=True, eq=False)
class Cloud:
    """Points of the ball, in the paper's order: the truth if it is known, samples, uniform rotations."""

    q: Float64[np.ndarray, "n 4"]  # canonical xyzw
    log_density: Float64[np.ndarray, " n"]  # volume pi^2
    source: Int64[np.ndarray, " n"]  # TRUTH, SAMPLE or UNIFORM
    mode: Int64[np.ndarray, " n"]  # of a sample: which mode it belongs to; -1 for others and for none
    modes: list[Mode]
    answer: Float64[np.ndarray, "4"]  # the prediction, xyzw
    answer_log_density: float
    ceiling: float
    folded: Folded | None = None  # the modes up to the object's symmetry, where that is known

    @property
    def words(self) -> str:
        """How sure the posterior is."""
        return describe(self.modes) if self.folded is None else self.folded.words

    @property
    def rotvec(self) -> Float64[np.ndarray, "n 3"]:
        """Rotation vectors, in radians, all within a ball of radius pi."""
        return quat_to_rotvec(torch.from_numpy(self.q)).numpy()

    @property
    def has_truth(self) -> bool:
        return bool((self.source == TRUTH).any())

    def annotated(self, count: int = 6) -> list[int]:
        """Points worth a picture: the truth, a sample of each mode, more along curves, and last an unlikely rotation."""
        samples = np.flatnonzero(self.source == SAMPLE)
        uniform = np.flatnonzero(self.source == UNIFORM)
        chosen = [0] if self.has_truth else []
        room = count - (len(uniform) > 0)
        for k, mode in enumerate(self.modes):
            mine = samples[self.mode[samples] == k]
            if len(mine) and len(chosen) < room:
                near = int(mine[_angles(np.array([mode.quaternion]), self.q[mine])[0].argmin()])
                if not (self.has_truth and _angles(self.q[:1], self.q[[near]])[0, 0] < 8):  # the truth shows it already
                    chosen.append(near)
        extended = samples[[m >= 0 and self.modes[m].kind != "point" for m in self.mode[samples]]]
        while len(extended) and len(chosen) < room:
            away = _angles(self.q[chosen], self.q[extended]).min(0) if chosen else np.zeros(len(extended))
            if chosen and away.max() < 15:  # degrees: a picture beside would show the same
                break
            chosen.append(int(extended[away.argmax()]))
        if len(uniform) and len(chosen) < count:
            middle = np.argsort(self.log_density[uniform])[len(uniform) // 2]
            chosen.append(int(uniform[middle]))
        return chosen


def make_cloud(
    posterior: RotationDistribution,
    *,
    samples: int = 499,
    uniform: int = 500,
    truth: Any = None,
    symmetry: SymmetryGroup | None = None,
    generator: torch.Generator | None = None,
) -> Cloud:
    """The points of Figure 7 for the posterior of one image; `truth` is a quaternion xyzw. Modes are found from at least 1,000 samples."""
    if tuple(posterior.batch_shape) != (1,):
        raise InputError(f"a picture shows the posterior of one image, got a batch {tuple(posterior.batch_shape)}.")
    if samples < 0 or uniform < 0:
        raise InputError(f"numbers of points must not be negative, got {samples} samples and {uniform} uniform ones.")
    drawn = posterior.sample((max(samples, 1000),), generator=generator)[:, 0].double()
    device, drawn = drawn.device, drawn.cpu()
    found = cluster(drawn)
    (modes,) = with_densities(posterior, [found.modes], device)
    answer = posterior.mode.double().cpu()
    anywhere = random_quat((uniform,), generator=generator, dtype=torch.float64, device="cpu")
    given = [as_unit_quat(truth, "truth").reshape(-1, 4)[:1]] if truth is not None else []
    q = torch.cat([*given, drawn[:samples], anywhere, answer])
    with torch.no_grad():
        log_p = posterior.log_prob(q[:, None].to(device))[:, 0].double().cpu().numpy()
    source = np.repeat([TRUTH, SAMPLE, UNIFORM], [len(given), samples, uniform])
    mode = np.full(len(source), -1)
    mode[source == SAMPLE] = found.labels[:samples]
    return Cloud(
        q=q[:-1].numpy(),
        log_density=log_p[:-1],
        source=source.astype(np.int64),
        mode=mode.astype(np.int64),
        modes=modes,
        answer=answer[0].numpy(),
        answer_log_density=float(log_p[-1]),
        ceiling=float(posterior.ceiling),
        folded=None if symmetry is None else Folded.of(drawn, answer[0], symmetry),
    )


def _angles(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return angles_deg(torch.from_numpy(p), torch.from_numpy(q)).numpy()
