"""What to tell a person about a posterior: the prediction, how sure it is, and what else fits."""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from aquamam.errors import InputError
from aquamam.geometry.rotations import quat_to_matrix, quat_to_rotvec
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.posterior.distribution import RotationDistribution
from aquamam.posterior.modes import NEIGHBOURS, Mode, angles_deg, as_tuple, cluster, describe

SHARE_ANGLES = (5, 15, 30)  # degrees


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What one wants to know about an image: the predicted rotation, how sure it is, and what else fits."""

    quaternion: tuple[float, float, float, float]  # xyzw
    log_density: float  # of the prediction, volume pi^2
    ceiling: float  # the largest log density that the model can express
    shares: dict[int, float]  # degrees -> share of probability that near to the prediction
    modes: tuple[Mode, ...]  # largest share first
    folded: "Folded | None" = None  # the same up to the object's symmetry, where that is known

    @property
    def is_ambiguous(self) -> bool:
        """Whether more than one rotation fits."""
        return _ambiguous(self.modes)

    @property
    def words(self) -> str:
        """The answer's certainty as a phrase."""
        return describe(self.modes) if self.folded is None else self.folded.words

    def to_dict(self, *, matrix: bool = False) -> dict[str, Any]:
        """As plain values for JSON, which knows no infinity."""
        q = torch.tensor(self.quaternion, dtype=torch.float64)
        values: dict[str, Any] = {"quaternion_xyzw": _rounded(q), "rotvec": _rounded(quat_to_rotvec(q))}
        if matrix:
            values["matrix"] = _rounded(quat_to_matrix(q))
        values |= {"log_density": _finite(self.log_density), "ceiling": _finite(self.ceiling), "measure": "pi^2"}
        if self.shares:
            values |= _told(self.shares, self.modes)
            values["verdict"] = self.words
        if self.folded is not None:
            values["up_to_symmetry"] = self.folded.to_dict()
        return values


@dataclass(frozen=True, kw_only=True)
class Folded:
    """An answer in which rotations that look the same, by the object's symmetry, are one: each stands where it is nearest to the prediction."""

    order: int | float  # of the group
    shares: dict[int, float]
    modes: tuple[Mode, ...]

    @classmethod
    def of(
        cls,
        q: Float[Tensor, "n 4"],
        predicted: Float[Tensor, "4"],
        group: SymmetryGroup,
        radius_deg: float | None = None,
    ) -> "Folded":
        """From samples (xyzw)."""
        near = group.nearest(q.double().cpu(), predicted.double().cpu())
        angle = angles_deg(predicted[None].cpu(), near)[0]
        return cls(order=group.order, shares=shares_within(angle), modes=tuple(cluster(near, radius_deg).modes))

    @property
    def words(self) -> str:
        """The certainty as a phrase."""
        many = "the continuous symmetry" if math.isinf(self.order) else f"the {self.order} rotations that look the same"
        return f"{describe(self.modes)}, up to {many}"

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON; the density of a mode is that of one of its rotations."""
        order = None if math.isinf(self.order) else self.order
        return {"order": order, **_told(self.shares, self.modes), "verdict": self.words}


def answers(
    posterior: RotationDistribution,
    samples: int = 1000,
    *,
    strategy: str = "greedy",
    symmetry: SymmetryGroup | None = None,
    radius_deg: float | None = None,
    generator: torch.Generator | None = None,
) -> list[Answer]:
    """The answer for each image, also up to the object's symmetry if given; `strategy` is that of `RotationDistribution.predict`."""
    q = _draw(posterior, samples, generator)
    with torch.no_grad():
        predicted = posterior.predict(strategy, generator=generator)
        log_density = posterior.log_prob(predicted).double()
    predicted = predicted.double()
    folded: list[Folded | None] = [None] * len(predicted)
    if symmetry is not None:
        found = [Folded.of(q[:, i], predicted[i], symmetry, radius_deg) for i in range(len(predicted))]
        modes_of = with_densities(posterior, [list(one.modes) for one in found], q.device)
        folded = [replace(one, modes=tuple(modes)) for one, modes in zip(found, modes_of)]
    result = []
    for i, modes in enumerate(_modes(posterior, q, radius_deg)):
        result.append(
            Answer(
                quaternion=as_tuple(predicted[i]),
                log_density=float(log_density[i]),
                ceiling=float(posterior.ceiling),
                shares=shares_within(angles_deg(predicted[i, None], q[:, i])[0]),
                modes=tuple(modes),
                folded=folded[i],
            )
        )
    return result


def shares_within(angle: Float[Tensor, "n"]) -> dict[int, float]:
    """Of the samples at these angles to the prediction, in degrees."""
    return {limit: float((angle <= limit).double().mean()) for limit in SHARE_ANGLES}


def _ambiguous(modes: tuple[Mode, ...]) -> bool:
    return len(modes) != 1 or modes[0].kind != "point"


def _told(shares: dict[int, float], modes: tuple[Mode, ...]) -> dict[str, Any]:
    near = {f"share_within_{limit}_deg": round(share, 4) for limit, share in shares.items()}
    return {**near, "modes": [mode.to_dict() for mode in modes], "ambiguous": _ambiguous(modes)}


def plain_answers(
    posterior: RotationDistribution, *, strategy: str = "greedy", generator: torch.Generator | None = None
) -> list[Answer]:
    """The predictions and their log densities alone: no samples are drawn, so there are no shares and no modes."""
    with torch.no_grad():
        predicted = posterior.predict(strategy, generator=generator)
        log_density = posterior.log_prob(predicted).tolist()
    ceiling = float(posterior.ceiling)
    return [
        Answer(quaternion=as_tuple(q), log_density=log_p, ceiling=ceiling, shares={}, modes=())
        for q, log_p in zip(predicted, log_density)
    ]


def _draw(posterior: RotationDistribution, samples: int, generator: torch.Generator | None) -> Tensor:
    """Samples (samples, batch, 4) in float64."""
    if samples <= NEIGHBOURS:
        raise InputError(f"modes need more than {NEIGHBOURS} samples, got {samples}; 1000 tell four modes from one.")
    if len(posterior.batch_shape) != 1:
        raise InputError(f"modes are found for a flat batch of images, got batch {tuple(posterior.batch_shape)}.")
    return posterior.sample((samples,), generator=generator).double()


def _modes(posterior: RotationDistribution, q: Tensor, radius_deg: float | None) -> list[list[Mode]]:
    return with_densities(posterior, [cluster(q[:, i], radius_deg).modes for i in range(q.shape[1])], q.device)


def with_densities(
    posterior: RotationDistribution, found: list[list[Mode]], device: torch.device | None = None
) -> list[list[Mode]]:
    """Each image's modes with their log densities filled in."""
    most = max(map(len, found), default=0)
    if most == 0:
        return found
    where = torch.zeros(most, len(found), 4, dtype=torch.float64)
    where[..., 3] = 1
    for i, modes in enumerate(found):
        for k, mode in enumerate(modes):
            where[k, i] = torch.tensor(mode.quaternion, dtype=torch.float64)
    with torch.no_grad():
        log_p = posterior.log_prob(where.to(device)).cpu()
    return [
        [replace(mode, log_density=float(log_p[k, i])) for k, mode in enumerate(modes)] for i, modes in enumerate(found)
    ]


def _finite(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _rounded(values: Tensor) -> Any:
    return torch.round(values, decimals=7).tolist()
