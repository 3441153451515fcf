"""What to tell a person about a posterior: the prediction, how sure it is, and what else fits."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int64
from torch import Tensor

from aquamam.errors import require
from aquamam.geometry.rotations import quat_to_matrix, quat_to_rotvec
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.posterior.distribution import Generator, RotationDistribution
from aquamam.posterior.modes import NEIGHBOURS, Mode, angles_deg, as_tuple, cluster, describe
from aquamam.posterior.regions import ATYPICAL

SHARE_ANGLES = (5, 15, 30)  # degrees
Samples = Float[Tensor, "n 4"]


@dataclass(frozen=True, kw_only=True)
class Certainty:
    """How the probability is shared out; of no samples nothing is known."""

    shares: dict[int, float] = field(default_factory=dict)  # degrees -> probability that near to the prediction
    modes: tuple[Mode, ...] = ()  # largest share first

    @property
    def words(self) -> str:
        return describe(self.modes)

    def to_dict(self) -> dict[str, Any]:
        near = {f"share_within_{limit}_deg": round(share, 4) for limit, share in self.shares.items()}
        ambiguous = len(self.modes) != 1 or self.modes[0].kind != "point"
        told = {"modes": [mode.to_dict() for mode in self.modes], "ambiguous": ambiguous, "verdict": self.words}
        return near | told


@dataclass(frozen=True, kw_only=True)
class Folded(Certainty):
    """A certainty in which rotations that look the same, by the object's symmetry, are one: each stands where it is
    nearest to the prediction. The density of a mode is that of one of its rotations."""

    order: int | float  # of the group

    @classmethod
    def of(cls, q: Samples, best: Float[Tensor, "4"], group: SymmetryGroup) -> "Folded":
        """From samples and the prediction (xyzw)."""
        near = group.nearest(q.double().cpu(), best.double().cpu())
        return cls(order=group.order, shares=shares_within(near, best.cpu()), modes=tuple(cluster(near).modes))

    @property
    def words(self) -> str:
        many = "the continuous symmetry" if math.isinf(self.order) else f"the {self.order} rotations that look the same"
        return f"{describe(self.modes)}, up to {many}"

    def to_dict(self) -> dict[str, Any]:
        return {"order": None if math.isinf(self.order) else self.order, **super().to_dict()}


@dataclass(frozen=True, kw_only=True)
class Answer(Certainty):
    """What one wants to know about an image: the predicted rotation, how sure it is, and what else fits."""

    quaternion: tuple[float, float, float, float]  # xyzw
    log_density: float  # of the prediction, volume pi^2
    ceiling: float  # the largest log density that the model can express
    folded: Folded | None = None  # the certainty up to the object's symmetry, where that is known
    typicality: float | None = None  # p-value of being like the images of training
    samples: Samples | None = field(default=None, compare=False, repr=False)  # that were drawn for it
    labels: Int64[np.ndarray, " n"] | None = field(default=None, compare=False, repr=False)  # their modes, -1 for none

    @property
    def words(self) -> str:
        words = super().words if self.folded is None else self.folded.words
        if self.typicality is None or self.typicality >= ATYPICAL:
            return words
        return f"{words}; unlike its training pictures, p = {self.typicality:.2g}"

    def to_dict(self, *, matrix: bool = False) -> dict[str, Any]:
        """As plain values for JSON, which knows no infinity; shares and modes only if samples were drawn."""
        q = torch.tensor(self.quaternion, dtype=torch.float64)
        values: dict[str, Any] = {"quaternion_xyzw": _rounded(q), "rotvec": _rounded(quat_to_rotvec(q))}
        if matrix:
            values["matrix"] = _rounded(quat_to_matrix(q))
        for name, value in (("log_density", self.log_density), ("ceiling", self.ceiling)):
            values[name] = round(value, 4) if math.isfinite(value) else None
        if self.typicality is not None:
            values["typicality"] = round(self.typicality, 5)
        values |= {"measure": "pi^2", **(super().to_dict() if self.shares else {})}
        return values if self.folded is None else {**values, "up_to_symmetry": self.folded.to_dict()}


def _rounded(values: Tensor) -> Any:
    return torch.round(values, decimals=7).tolist()


def answers(
    posterior: RotationDistribution,
    samples: int = 1000,
    *,
    strategy: str = "greedy",
    symmetry: SymmetryGroup | None = None,
    generator: Generator = None,
) -> list[Answer]:
    """The answer for each image of a flat batch, also up to the object's symmetry if given; `strategy` is that of
    `predict`. With 0 samples it is the prediction and its density alone.
    """
    enough = samples == 0 or samples > NEIGHBOURS
    require(enough, f"modes need more than {NEIGHBOURS} samples, got {samples}; 1000 tell four modes from one.")
    drawn = posterior.sample((samples,), generator=generator).double()
    with torch.no_grad():
        predicted = posterior.predict(strategy, generator=generator)
        log_density = posterior.log_prob(predicted).tolist()
        typicality = posterior.typicality
    typical = [None] * len(predicted) if typicality is None else typicality.tolist()
    found = []
    for q, best, log_p, p in zip(drawn.unbind(1), predicted, log_density, typical):
        told: dict[str, Any] = {"log_density": log_p, "ceiling": float(posterior.ceiling), "typicality": p}
        if samples:
            labels, modes = cluster(q)
            told |= {"samples": q, "labels": labels, "shares": shares_within(q, best), "modes": tuple(modes)}
            told["folded"] = symmetry and Folded.of(q, best, symmetry)
        found.append(Answer(quaternion=as_tuple(best), **told))
    return with_densities(posterior, found, drawn.device) if samples else found


def shares_within(q: Samples, best: Float[Tensor, "4"]) -> dict[int, float]:
    """Of samples near to the prediction."""
    angle = angles_deg(best[None], q)[0]
    return {limit: float((angle <= limit).double().mean()) for limit in SHARE_ANGLES}


def with_densities(posterior: RotationDistribution, found: list[Answer], device: torch.device) -> list[Answer]:
    """Each image's answer with the log densities of its modes filled in, one pass of the network for all."""
    every = [(*one.modes, *(one.folded.modes if one.folded is not None else ())) for one in found]
    where = torch.full((max(map(len, every), default=0), len(found), 4), 0.5, dtype=torch.float64)  # rotations, too
    for i, modes in enumerate(every):
        where[: len(modes), i] = torch.tensor([mode.quaternion for mode in modes], dtype=torch.float64).reshape(-1, 4)
    with torch.no_grad():
        log_p = posterior.log_prob(where.to(device)).T.tolist()
    done = []
    for one, modes, densities in zip(found, every, log_p):
        told = tuple(replace(mode, log_density=p) for mode, p in zip(modes, densities))
        folded = one.folded and replace(one.folded, modes=told[len(one.modes) :])
        done.append(replace(one, modes=told[: len(one.modes)], folded=folded))
    return done
