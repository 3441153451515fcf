r"""Sets of rotations that hold the truth as often as they say.

The highest-density region of a posterior at a level is $\{q : p(q) \ge t\}$, with t such that it holds that share of
the posterior. A posterior may be too sure, or not sure enough. Split conformal prediction corrects that: for held-out
images with known truths the mass of the region that just holds the truth (`density_pit`) is a score, and the set of
all rotations whose score is at most the $\lceil (n + 1) α \rceil$-th smallest of n held-out ones holds the truth of a
new image with probability at least α, whatever the model, if that image is drawn like the held-out ones.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aquamam.errors import require
from aquamam.geometry.directional import draw_uniform
from aquamam.geometry.rotations import LOG_UNIFORM, Generator, random_quat
from aquamam.posterior.modes import Mode, angles_deg, cluster

SAMPLES = 500  # rotations drawn for a region
PerImage = Float[Tensor, "*batch"]
LARGEST = 0.01  # of all rotations, as much as a ball of 33 degrees: with more, one had better not act
ATYPICAL = 0.01  # p-value below which an image is unlike those of training


class Estimate(NamedTuple):
    """A Monte Carlo estimate and its standard error."""

    value: Float[Tensor, "*batch"]
    standard_error: Float[Tensor, "*batch"]


def check_level(level: float) -> None:
    """Refuse what is no probability."""
    require(0 < level < 1, f"a level must lie between 0 and 1, got {level}; 0.9 asks for nine truths of ten.")


def density_pit(truth: PerImage, samples: Float[Tensor, "samples *batch"], u: PerImage) -> PerImage:
    r"""Mass of the highest-density region that just holds the truth, from log densities at the truth and at samples:

    $$(\#\{s : p(s) > p(t)\} + u\,(\#\{s : p(s) = p(t)\} + 1)) / (S + 1).$$

    With u uniform in [0, 1) it is exactly uniform, for any number of samples and whatever the ties, if truths are draws
    from their distributions. Truths that gather near 1 mean a distribution that is too sure.
    """
    above, ties = (samples > truth).sum(0), (samples == truth).sum(0)
    return ((above + u.double() * (ties + 1)) / (len(samples) + 1)).to(u.dtype)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Samples of a `RotationDistribution` and their log densities."""

    posterior: Any
    q: Float[Tensor, "samples batch 4"]

    @classmethod
    def of(cls, posterior: Any, samples: int, generator: Generator) -> "Drawn":
        return cls(posterior, posterior.sample((samples,), generator=generator))

    def density(self, q: Tensor) -> Tensor:
        """Log densities to a ten-thousandth of a nat and of the samples' dtype: equal cells must tie."""
        with torch.no_grad():
            return (self.posterior.log_prob(q.to(self.q.dtype)).double() * 1e4).round() / 1e4

    @cached_property
    def log_p(self) -> Float[Tensor, "samples batch"]:
        return self.density(self.q)

    def score(self, truth: Float[Tensor, "batch 4"], u: Float[Tensor, "batch"]) -> Float[Tensor, "batch"]:
        return density_pit(self.density(truth), self.log_p, u)

    @property
    def spread(self) -> Float[Tensor, "batch"]:
        """Entropy in nats, as the samples tell it."""
        return -self.log_p.mean(0)


@dataclass(frozen=True, eq=False)
class Region:
    """The rotations that are at least as likely as a threshold, for each image of a batch."""

    level: float  # the promised probability to hold the truth
    calibrated: bool  # whether held-out truths stand behind it, or the posterior alone
    mass: Float[Tensor, "batch"]  # the share of the posterior that it takes
    threshold: Float[Tensor, "batch"]  # log density, volume pi^2
    closed: Bool[Tensor, "batch"]  # whether rotations exactly as likely as the threshold belong to it
    largest: float  # share of all rotations from which on `abstain` says so
    drawn: Drawn
    generator: Generator

    def contains(self, q: Tensor) -> Tensor:
        """Whether rotations, unit quaternions xyzw of shape (*sample, batch, 4), belong to it: (*sample, batch)."""
        return self._inside(self.drawn.density(q))

    def _inside(self, log_p: Tensor) -> Tensor:
        return (log_p > self.threshold) | (self.closed & (log_p == self.threshold))

    @cached_property
    def share(self) -> Estimate:
        r"""Its part of all rotations, with the standard error, from as many uniform rotations as samples of the
        posterior: the mean of $2 · 1[q ∈ region] / (1 + π^2 p(q))$, which is never above two."""
        count, posterior = len(self.drawn.q), self.drawn.posterior
        uniform = random_quat((count, *self.threshold.shape), generator=self.generator, device=self.drawn.q.device)
        fresh = posterior.sample((count,), generator=self.generator)  # those at hand made the threshold
        log_p = self.drawn.density(torch.cat([uniform.to(fresh), fresh]))
        value = 2 * self._inside(log_p) / (1 + torch.exp(log_p - LOG_UNIFORM))
        halves = value.unflatten(0, (2, count))  # strata: each mean has an error of its own
        return Estimate(value.mean(0), (halves.var(1) / count).sum(0).sqrt() / 2)

    @property
    def abstain(self) -> Bool[Tensor, "batch"]:
        """Whether it is too large to act on, or the image unlike those that the model knows."""
        typicality = self.drawn.posterior.typicality
        large = self.share.value > self.largest
        return large if typicality is None else large | (typicality < ATYPICAL)

    @cached_property
    def components(self) -> list[list[Mode]]:
        """The separate parts for each image, largest share first: all of a part's samples lie within its radius."""
        drawn, inside = self.drawn.q.double().cpu(), self._inside(self.drawn.log_p).cpu()
        return [self._components(drawn[inside[:, i], i]) for i in range(drawn.shape[1])]

    def _components(self, q: Float[Tensor, "n 4"]) -> list[Mode]:
        """Of the samples of one image that lie in its region."""
        parts = []
        labels, modes = cluster(q)
        for k, mode in enumerate(modes):
            members = q[torch.from_numpy(labels == k)]
            reach = angles_deg(torch.tensor([mode.quaternion], dtype=torch.float64), members).max()
            parts.append(replace(mode, share=len(members) / len(self.drawn.q), radius_deg=float(reach)))
        return parts

    def to_dicts(self) -> list[dict[str, Any]]:
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


def find_region(
    posterior: Any,
    level: float = 0.9,
    *,
    calibration: bool = True,
    samples: int | None = None,
    largest: float = LARGEST,
    generator: Generator = None,
) -> Region:
    """The highest-density regions of a `RotationDistribution` at a level.

    calibration: False trusts the posterior alone, also where there are conformal scores of held-out images.
    samples: rotations drawn; a calibration fixes their number, since its scores were ranked among as many.
    """
    check_level(level)
    shape = tuple(posterior.batch_shape)
    require(len(shape) == 1, f"regions are found for a flat batch of images, got batch {shape}.")
    require(0 < largest <= 1, f"largest is a share of all rotations, between 0 and 1, got {largest}; try {LARGEST}.")
    scores = posterior.conformal_scores if calibration else None
    count = (SAMPLES if samples is None else samples) if scores is None else scores.samples
    good = samples in (None, count)
    require(good, f"this calibration ranks among {count} samples, got samples={samples}; leave it out.")
    require(count >= 20, f"a region needs at least 20 samples, got {count}; the default is {SAMPLES}.")
    drawn = Drawn.of(posterior, count, generator)
    mass = torch.full_like(drawn.spread, level) if scores is None else scores.mass(level, drawn.spread)
    u = draw_uniform(mass.shape, generator, mass.device)
    threshold, closed = score_threshold(drawn.log_p, mass, u)
    return Region(level, scores is not None, mass, threshold, closed, largest, drawn, generator)


def score_threshold(
    log_p: Float[Tensor, "samples batch"], mass: Float[Tensor, "batch"], u: Float[Tensor, "batch"]
) -> tuple[Float[Tensor, "batch"], Bool[Tensor, "batch"]]:
    """The log density from which on `density_pit` is at most `mass`, and whether it is so at that density itself.

    Between two samples it is (number above + u) / (S + 1), which falls with the density; on a sample it lies between.
    """
    count = len(log_p)
    above = (mass.double() * (count + 1) - u).floor().long()
    ordered = log_p.double().sort(dim=0, descending=True).values
    ordered = torch.cat([ordered, torch.full_like(ordered[:1], -torch.inf)])
    threshold = ordered.gather(0, above.clamp(0, count)[None])[0]
    threshold = torch.where(above < 0, torch.inf, threshold)
    more, ties = (log_p > threshold).sum(0), (log_p == threshold).sum(0)
    closed = (more + u * (ties + 1)) <= mass * (count + 1)
    return threshold, closed & threshold.isfinite()
