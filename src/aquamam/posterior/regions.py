r"""Sets of rotations that hold the truth as often as they say.

The highest-density region of a posterior at a level is $\{q : p(q) \ge t\}$, with t such that it holds that share of the posterior. A
posterior may be too sure, or not sure enough. Split conformal prediction mends that: for held-out images with known truths the mass of the
region that just holds the truth (`density_pit`) is a score, and a set of all rotations whose score is at most the
$\lceil (n + 1) α \rceil$-th smallest of n held-out ones holds the truth of a new image with probability at least α, whatever the model,
if that image is drawn like the held-out ones.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aquamam.errors import InputError
from aquamam.geometry.rotations import LOG_UNIFORM, random_quat
from aquamam.posterior.calibration import ConformalScores
from aquamam.posterior.modes import NEIGHBOURS, angles_deg, cluster

SAMPLES = 500  # rotations drawn for a region
LARGEST = 0.01  # of all rotations, as much as a ball of 33 degrees: with more, one had better not act
FINE = 1e4  # log densities are compared to so many parts of a nat: equal cells must tie, whatever else was computed beside them


@runtime_checkable
class Density(Protocol):
    """What a region asks of a posterior."""

    @property
    def batch_shape(self) -> torch.Size: ...

    def sample(self, sample_shape: Any = (), *, generator: torch.Generator | None = None) -> Tensor: ...

    def log_prob(self, value: Tensor, measure: str = "pi2") -> Tensor: ...


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error."""

    value: Float[Tensor, "*batch"]
    standard_error: Float[Tensor, "*batch"]


def check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InputError(f"a level must lie between 0 and 1, got {level}; 0.9 asks for nine truths of ten.")


def density_pit(
    truth: Float[Tensor, "*batch"], samples: Float[Tensor, "samples *batch"], u: Float[Tensor, "*batch"]
) -> Float[Tensor, "*batch"]:
    r"""Mass of the highest-density region that just holds the truth, from log densities at the truth and at samples:

    $$(\#\{s : p(s) > p(t)\} + u\,(\#\{s : p(s) = p(t)\} + 1)) / (S + 1).$$

    With u uniform in [0, 1) it is exactly uniform, for any number of samples and whatever the ties, if truths are draws from their
    distributions. Truths that gather near 1 mean a distribution that is too sure, near 0 one that is not sure enough.
    """
    above, ties = (samples > truth).sum(0), (samples == truth).sum(0)
    return ((above + u.double() * (ties + 1)) / (len(samples) + 1)).to(u.dtype)


@dataclass(frozen=True)
class Drawn:
    """Samples of posteriors and their log densities."""

    posterior: Density
    q: Float[Tensor, "samples batch 4"]

    @classmethod
    def of(cls, posterior: Density, samples: int, generator: torch.Generator | None) -> "Drawn":
        return cls(posterior, posterior.sample((samples,), generator=generator))

    @cached_property
    def log_p(self) -> Float[Tensor, "samples batch"]:
        return _rounded(self.posterior.log_prob(self.q))

    def score(self, truth: Float[Tensor, "batch 4"], u: Float[Tensor, "batch"]) -> Float[Tensor, "batch"]:
        # the samples' dtype, or ties would not be ties
        return density_pit(_rounded(self.posterior.log_prob(truth.to(self.q.dtype))), self.log_p, u)

    @property
    def spread(self) -> Float[Tensor, "batch"]:
        """Entropy in nats, as the samples tell it."""
        return -self.log_p.double().mean(0)


def _rounded(log_p: Tensor) -> Tensor:
    return (log_p.double() * FINE).round() / FINE


# --- regions ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Component:
    """A separate part of a region."""

    quaternion: tuple[float, float, float, float]  # xyzw, where the posterior's samples are most crowded in it
    share: float  # of the posterior
    radius_deg: float  # all of its samples lie this near to the quaternion
    kind: str  # "point", "curve" or "region", as for modes

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        rounded = {"share": round(self.share, 4), "radius_deg": round(self.radius_deg, 2), "kind": self.kind}
        return {"quaternion_xyzw": [round(x, 6) for x in self.quaternion], **rounded}


@dataclass(frozen=True, kw_only=True, eq=False)
class Region:
    """The rotations that are at least as likely as a threshold, for each image of a batch."""

    level: float  # the promised probability to hold the truth
    calibrated: bool  # whether held-out truths stand behind it, or the posterior alone
    mass: Float[Tensor, "batch"]  # the share of the posterior that it takes
    threshold: Float[Tensor, "batch"]  # log density, volume pi^2
    closed: Bool[Tensor, "batch"]  # whether rotations exactly as likely as the threshold belong to it
    largest: float  # share of all rotations from which on `abstain` says so
    drawn: Drawn
    generator: torch.Generator | None

    def contains(self, q: Tensor) -> Tensor:
        """Whether rotations, unit quaternions xyzw of shape (*sample, batch, 4), belong to it: (*sample, batch)."""
        with torch.no_grad():
            return self._inside(_rounded(self.drawn.posterior.log_prob(q.to(self.drawn.q.dtype))))

    def _inside(self, log_p: Tensor) -> Tensor:
        return (log_p > self.threshold) | (self.closed & (log_p == self.threshold))

    @cached_property
    def share(self) -> Estimate:
        r"""Its part of all rotations, with the standard error, from as many uniform rotations as samples of the posterior together:
        the mean of $2 · 1[q ∈ region] / (1 + π^2 p(q))$, which is never above two."""
        count, batch = len(self.drawn.q), self.threshold.shape
        uniform = random_quat(
            (count, *batch), generator=self.generator, dtype=self.drawn.q.dtype, device=self.drawn.q.device
        )
        with torch.no_grad():  # samples of their own: those at hand made the threshold
            fresh = self.drawn.posterior.sample((count,), generator=self.generator)
            log_p = self.drawn.posterior.log_prob(torch.cat([uniform, fresh])).double()
        value = self._inside(_rounded(log_p)) * 2 / (1 + torch.exp(log_p - LOG_UNIFORM))
        # the two halves are strata: each mean has an error of its own
        halves = value.unflatten(0, (2, count))
        error = (halves.var(1) / count).sum(0).sqrt() / 2
        return Estimate(value.mean(0), error)

    @property
    def abstain(self) -> Bool[Tensor, "batch"]:
        """Whether it is too large to act on."""
        return self.share.value > self.largest

    @cached_property
    def components(self) -> list[list[Component]]:
        """The separate parts for each image, largest share first."""
        q = self.drawn.q.double().cpu()
        inside = self._inside(self.drawn.log_p).cpu()
        return [_components(q[inside[:, i], i], len(q)) for i in range(q.shape[1])]

    def to_dicts(self) -> list[dict[str, Any]]:
        """One dictionary an image, as plain values for JSON."""
        share, error = self.share
        return [
            {
                "level": self.level,
                "calibrated": self.calibrated,
                "mass": round(float(self.mass[i]), 6),
                "share_of_rotations": float(share[i]),
                "share_se": float(error[i]),
                "abstain": bool(self.abstain[i]),
                "components": [part.to_dict() for part in parts],
            }
            for i, parts in enumerate(self.components)
        ]


def _components(q: Float[Tensor, "n 4"], drawn: int) -> list[Component]:
    if len(q) <= NEIGHBOURS:
        return []
    labels, modes = cluster(q)
    parts = []
    for k, mode in enumerate(modes):
        members = q[torch.from_numpy(labels == k)]
        reach = angles_deg(torch.tensor([mode.quaternion], dtype=torch.float64), members).max()
        share = len(members) / drawn
        parts.append(Component(quaternion=mode.quaternion, share=share, radius_deg=float(reach), kind=mode.kind))
    return parts


def find_region(
    posterior: Density,
    level: float = 0.9,
    *,
    calibration: ConformalScores | dict[str, Any] | bool | None = None,
    samples: int | None = None,
    largest: float = LARGEST,
    generator: torch.Generator | None = None,
) -> Region:
    """The highest-density regions at a level.

    calibration: conformal scores of held-out images (`calibrate` returns them); None or False trusts the posterior.
    samples: rotations drawn; a calibration fixes their number, since its scores were ranked among as many.
    """
    check_level(level)
    if len(posterior.batch_shape) != 1:
        raise InputError(f"regions are found for a flat batch of images, got batch {tuple(posterior.batch_shape)}.")
    if not 0 < largest <= 1:
        raise InputError(
            f"largest is a share of all rotations, between 0 and 1, got {largest}; the default is {LARGEST}."
        )
    scores = ConformalScores.from_dict(calibration) if isinstance(calibration, dict) else calibration
    if isinstance(scores, bool):
        scores = None
    if scores is not None and samples not in (None, scores.samples):
        raise InputError(f"this calibration ranks among {scores.samples} samples, got samples={samples}; leave it out.")
    count = scores.samples if scores is not None else SAMPLES if samples is None else samples
    if count < 20:
        raise InputError(f"a region needs at least 20 samples, got {count}; the default is {SAMPLES}.")
    with torch.no_grad():
        drawn = Drawn.of(posterior, count, generator)
    mass = torch.full_like(drawn.spread, level) if scores is None else scores.mass(level, drawn.spread)
    u = torch.rand(mass.shape, generator=generator, dtype=torch.float64, device=generator.device if generator else None)
    threshold, closed = _threshold(drawn.log_p, mass, u.to(mass.device))
    return Region(
        level=level,
        calibrated=scores is not None,
        mass=mass,
        threshold=threshold,
        closed=closed,
        largest=largest,
        drawn=drawn,
        generator=generator,
    )


def _threshold(
    log_p: Float[Tensor, "samples batch"], mass: Float[Tensor, "batch"], u: Float[Tensor, "batch"]
) -> tuple[Float[Tensor, "batch"], Bool[Tensor, "batch"]]:
    """The log density from which on a rotation's score is at most `mass`.

    Between two samples the score is (number above + u) / (S + 1), which falls with the density; on a sample it lies between those beside.
    """
    count = len(log_p)
    room = mass.double() * (count + 1) - u
    above = room.floor().long()
    ordered = torch.cat(
        [log_p.double().sort(dim=0, descending=True).values, torch.full_like(log_p[:1], -torch.inf).double()]
    )
    threshold = ordered.gather(0, above.clamp(0, count)[None])[0]
    threshold = torch.where(above < 0, torch.inf, threshold)
    more, ties = (log_p > threshold).sum(0), (log_p == threshold).sum(0)
    closed = (more + u * (ties + 1)) <= mass * (count + 1)
    return threshold, closed & threshold.isfinite()
