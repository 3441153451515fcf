r"""Sets of rotations that hold the truth as often as they say.

The highest-density region of a posterior at a level is $\{q : p(q) \ge t\}$, with t such that it holds that share of the posterior. A
posterior may be too sure, or not sure enough. Split conformal prediction mends that: for held-out images with known truths the mass of the
region that just holds the truth (its PIT, see `metrics.density_pit`) is a score, and a set of all rotations whose score is at most the
$\lceil (n + 1) α \rceil$-th smallest of n held-out ones holds the truth of a new image with probability at least α, whatever the model,
if that image is drawn like the held-out ones. The scores live in the model's `info`, and so in its checkpoint.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from tqdm import tqdm

from aquamam.data.base import RotationDataset
from aquamam.data.random import uniforms, words
from aquamam.data.stream import one_pass
from aquamam.posterior.distribution import Estimate, RotationDistribution, learn
from aquamam.errors import InputError
from aquamam.data.labels import draw_labels
from aquamam.evaluation.metrics import density_pit
from aquamam.posterior.modes import NEIGHBOURS, angles_deg, cluster
from aquamam.geometry.rotations import LOG_UNIFORM, random_quat

SAMPLES = 500  # rotations drawn for a region
LARGEST = 0.01  # of all rotations, as much as a ball of 33 degrees: with more, one had better not act
FINE = 1e4  # log densities are compared to so many parts of a nat: equal cells must tie, whatever else was computed beside them


# --- calibration ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Scores of held-out truths, smallest first, in groups by how spread out the posterior is."""

    samples: int  # rotations that the scores were ranked among
    scores: tuple[tuple[float, ...], ...]
    edges: tuple[float, ...] = ()  # between the groups, in nats of entropy

    def mass(self, level: float, spread: Float[Tensor, "batch"]) -> Float[Tensor, "batch"]:
        """The share of the posterior to take so that the truth is held with this probability; 1 where too few were held out."""
        masses = torch.tensor([_quantile(group, level) for group in self.scores], dtype=torch.float64)
        edges = torch.tensor(self.edges, dtype=torch.float64)
        return masses[torch.searchsorted(edges, spread.double().cpu().contiguous())].to(spread.device)

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {"samples": self.samples, "scores": [list(group) for group in self.scores], "edges": list(self.edges)}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Calibration":
        """The inverse of `to_dict`."""
        try:
            scores = tuple(tuple(float(score) for score in group) for group in data["scores"])
            found = cls(samples=int(data["samples"]), scores=scores, edges=tuple(map(float, data.get("edges", ()))))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"a calibration must hold samples, scores and edges, got {data!r:.60}; calibrate the model again."
            ) from error
        if found.samples < 1 or not scores or len(found.edges) != len(scores) - 1:
            raise InputError("a calibration must have one edge less than groups of scores; calibrate the model again.")
        return found


def _quantile(scores: Sequence[float], level: float) -> float:
    """The ceil((n + 1) level)-th smallest, or 1 if there are fewer."""
    rank = math.ceil((len(scores) + 1) * level - 1e-9)
    return scores[rank - 1] if rank <= len(scores) else 1.0


def calibrate(
    model: nn.Module,
    dataset: RotationDataset,
    levels: Sequence[float] = (0.5, 0.9, 0.95),
    *,
    samples: int = 200,
    groups: int = 1,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 64,
    quiet: bool = True,
) -> dict[str, Any]:
    """Score held-out images, keep the scores in `model.info["calibration"]`, and return that with the share of the posterior
    that each level takes ("levels": one for each group).

    The images must be none that the model was trained or chosen on. Save the model afterwards. groups: images are divided into so many
    by the spread of their posteriors, and each group is calibrated by itself, so that neither sure nor unsure answers pay for the others.
    """
    if samples < 20 or groups < 1:
        raise InputError(f"samples must be at least 20 and groups at least 1, got {samples} and {groups}.")
    for level in levels:
        _check_level(level)
    score, spread = held_out_scores(
        model, dataset, samples=samples, limit=limit, seed=seed, batch_size=batch_size, quiet=quiet
    )
    calibration = _grouped(score, spread, groups, samples)
    kept = calibration.to_dict()
    kept["levels"] = {f"{level:g}": [_quantile(group, level) for group in calibration.scores] for level in levels}
    kept["images"] = len(score)
    learn(model, calibration=kept)
    return kept


def held_out_scores(
    model: nn.Module,
    dataset: RotationDataset,
    *,
    samples: int,
    limit: int | None = None,
    seed: int = 0,
    batch_size: int = 64,
    quiet: bool = True,
    title: str = "calibrating",
) -> tuple[Float[Tensor, "images"], Float[Tensor, "images"]]:
    """For each image the mass of the region that just holds its truth, and the posterior's entropy.

    A region of a `Calibration` holds the truth exactly where the score is at most its `mass`.
    """
    scores, spreads = [], []
    total = limit if dataset.endless else min(len(dataset), limit or len(dataset))
    bar = tqdm(total=total, unit="img", desc=title, disable=True if quiet else None, dynamic_ncols=True)
    training, device = model.training, next(iter(model.parameters()), torch.empty(0)).device
    model.eval()
    try:
        for batch in one_pass(dataset, batch_size, limit=limit, unreadable="skip"):
            if len(batch) == 0:
                continue
            numbers = np.array(batch.indices, np.int64)
            batch = batch.to(device)
            # two, and the first of them: asked for one, it gives the pictured rotation, which need not be evenly drawn
            truth = draw_labels(batch, dataset, 2, seed=seed, positions=numbers)[0][0]
            word = int(words(seed, "calibration/samples", numbers[:1], 1)[0, 0])
            generator = torch.Generator(device=device).manual_seed(word >> 1)
            u = torch.from_numpy(uniforms(seed, "calibration/rank", numbers, 1)[:, 0]).to(device)
            with torch.no_grad():
                drawn = _Drawn.of(model(batch.images), samples, generator)
                scores.append(drawn.score(truth, u).double().cpu())
                spreads.append(drawn.spread.double().cpu())
            bar.update(len(batch))
    finally:
        bar.close()
        model.train(training)
    if not scores:
        raise InputError("calibration needs held-out images, and none of these can be read; choose another split.")
    return torch.cat(scores), torch.cat(spreads)


def _grouped(score: Tensor, spread: Tensor, groups: int, samples: int) -> Calibration:
    edges = torch.quantile(spread, torch.arange(1, groups, dtype=torch.float64) / groups)
    group = torch.searchsorted(edges, spread.contiguous())
    score = (score * 1e6).ceil() / 1e6  # short in a file; upwards, which only makes regions larger
    scores = tuple(tuple(score[group == k].sort().values.tolist()) for k in range(groups))
    return Calibration(samples=samples, scores=scores, edges=tuple(edges.tolist()))


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise InputError(f"a level must lie between 0 and 1, got {level}; 0.9 asks for nine truths of ten.")


@dataclass(frozen=True)
class _Drawn:
    """Samples of posteriors and their log densities."""

    posterior: RotationDistribution
    q: Float[Tensor, "samples batch 4"]
    log_p: Float[Tensor, "samples batch"]  # rounded

    @classmethod
    def of(cls, posterior: RotationDistribution, samples: int, generator: torch.Generator | None) -> "_Drawn":
        q = posterior.sample((samples,), generator=generator)
        return cls(posterior, q, _rounded(posterior.log_prob(q)))

    def score(self, truth: Float[Tensor, "batch 4"], u: Float[Tensor, "batch"]) -> Float[Tensor, "batch"]:
        log_p = _rounded(
            self.posterior.log_prob(truth.to(self.q.dtype))
        )  # the samples' dtype, or ties would not be ties
        return density_pit(log_p, self.log_p, u)

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
    drawn: _Drawn
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


def region(
    posterior: RotationDistribution,
    level: float = 0.9,
    *,
    calibration: Calibration | dict[str, Any] | bool = True,
    samples: int | None = None,
    largest: float = LARGEST,
    generator: torch.Generator | None = None,
) -> Region:
    """The highest-density regions at a level; with the calibration of the model that made the posterior, if there is one.

    calibration: another one (`calibrate` returns them), or False to trust the posterior.
    samples: rotations drawn; a calibration fixes their number, since its scores were ranked among as many.
    """
    _check_level(level)
    if len(posterior.batch_shape) != 1:
        raise InputError(f"regions are found for a flat batch of images, got batch {tuple(posterior.batch_shape)}.")
    if not 0 < largest <= 1:
        raise InputError(
            f"largest is a share of all rotations, between 0 and 1, got {largest}; the default is {LARGEST}."
        )
    scores = _calibration(posterior, calibration)
    if scores is not None and samples not in (None, scores.samples):
        raise InputError(f"this calibration ranks among {scores.samples} samples, got samples={samples}; leave it out.")
    count = scores.samples if scores is not None else SAMPLES if samples is None else samples
    if count < 20:
        raise InputError(f"a region needs at least 20 samples, got {count}; the default is {SAMPLES}.")
    with torch.no_grad():
        drawn = _Drawn.of(posterior, count, generator)
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


def _calibration(posterior: RotationDistribution, given: Calibration | dict[str, Any] | bool) -> Calibration | None:
    found = posterior.calibration if given is True else None if given is False else given
    return Calibration.from_dict(found) if isinstance(found, dict) else found


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
