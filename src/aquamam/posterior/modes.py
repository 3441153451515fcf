"""Separate modes of a posterior, and what to tell a person about it.

Samples are clustered on SO(3): those with enough neighbours within a radius are linked, and what is linked is one mode, however long the
chain. So a continuous symmetry is one extended mode (a curve), and a view with four equal answers has four.
"""

import math
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from aquamam.posterior.distribution import RotationDistribution
from aquamam.errors import InputError
from aquamam.geometry.rotations import chordal_mean, inverse, multiply, quat_to_matrix, quat_to_rotvec
from aquamam.geometry.symmetry import SymmetryGroup

NEIGHBOURS = 5  # a sample with fewer within the radius is a straggler and links nothing
LEAST_SHARE = 0.02  # smaller clusters are modes only where all are small (an icosahedron has 60)
LEAST_STANDING = 0.25  # share of points and curves below which a posterior is a region with specks
LEAST_RADIUS, MOST_RADIUS = 5.0, 60.0  # degrees; 250 uniform rotations are linked at about 50
BRIDGE = 20.0  # degrees: what lies so near to a curve belongs to it
LONG, WIDE = 45.0, 60.0  # degrees: a mode may be a curve from the first, and is else a region from the second
STRAIGHT = 0.7  # share of the spread along one direction that makes a curve; tubes of up to 8 degrees have it
MOST_SAMPLES = 4000  # clustered against each other, which takes n^2 numbers; more join the nearest of these
SHARE_ANGLES = (5, 15, 30)  # degrees


@dataclass(frozen=True, kw_only=True)
class Mode:
    """A separate part of a posterior."""

    quaternion: tuple[float, float, float, float]  # xyzw, where its samples are most crowded
    share: float  # of all probability
    radius_deg: float  # 90 % of its samples lie this near to the quaternion
    log_density: float  # at the quaternion, volume pi^2
    kind: str  # "point", "curve" (a continuous symmetry), or "region" when little stands out

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON, rounded to what samples can tell."""
        return {
            "quaternion_xyzw": [round(x, 6) for x in self.quaternion],
            "share": round(self.share, 4),
            "radius_deg": round(self.radius_deg, 2),
            "log_density": _finite(self.log_density),
            "kind": self.kind,
        }


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


class Clusters(NamedTuple):
    """Samples by mode: labels 0, 1, ... with the largest cluster first, -1 for stragglers; the modes' densities are left for later."""

    labels: Int64[np.ndarray, " n"]
    modes: list[Mode]


def find_modes(
    posterior: RotationDistribution,
    samples: int = 1000,
    *,
    radius_deg: float | None = None,
    generator: torch.Generator | None = None,
) -> list[list[Mode]]:
    """The modes of each image's posterior, largest share first; what their shares leave of 1 is spread elsewhere.

    radius_deg: how near samples must be to be linked; by default it follows from how crowded they are.
    """
    return _modes(posterior, _draw(posterior, samples, generator), radius_deg)


def answers(
    posterior: RotationDistribution,
    samples: int = 1000,
    *,
    strategy: str = "greedy",
    radius_deg: float | None = None,
    generator: torch.Generator | None = None,
) -> list[Answer]:
    """The answer for each image; `strategy` is that of `RotationDistribution.predict`."""
    q = _draw(posterior, samples, generator)
    with torch.no_grad():
        predicted = posterior.predict(strategy, generator=generator)
        log_density = posterior.log_prob(predicted).double()
    predicted = predicted.double()
    folded: list[Folded | None] = [None] * len(predicted)
    if posterior.symmetry is not None:
        found = [Folded.of(q[:, i], predicted[i], posterior.symmetry, radius_deg) for i in range(len(predicted))]
        modes_of = with_densities(posterior, [list(one.modes) for one in found], q.device)
        folded = [replace(one, modes=tuple(modes)) for one, modes in zip(found, modes_of)]
    result = []
    for i, modes in enumerate(_modes(posterior, q, radius_deg)):
        result.append(
            Answer(
                quaternion=_tuple(predicted[i]),
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
        Answer(quaternion=_tuple(q), log_density=log_p, ceiling=ceiling, shares={}, modes=())
        for q, log_p in zip(predicted, log_density)
    ]


def describe(modes: tuple[Mode, ...] | list[Mode]) -> str:
    """One phrase that says whether a view is clear, ambiguous or undecided."""
    standing = [mode for mode in modes if mode.kind != "region"]
    spread = 1 - sum(mode.share for mode in standing)
    if not modes:
        return "undecided: no samples lie close together; draw more of them, or the probability is spread over a wide region"
    if len(standing) < len(modes):
        return "undecided: the probability is spread over a wide region"
    shares = ", ".join(f"{100 * mode.share:.0f}" for mode in standing[:6]) + (", ..." if len(standing) > 6 else "")
    rest = f", {100 * spread:.0f} % spread elsewhere" if spread >= 0.1 else ""
    if all(mode.kind == "curve" for mode in standing):
        what = "one curve" if len(standing) == 1 else f"{len(standing)} curves"
        return f"ambiguous: {what} of rotations ({shares} %), a continuous symmetry{rest}"
    if len(standing) > 1:
        what = "rotations" if all(mode.kind == "point" for mode in standing) else "modes, some of them curves"
        return f"ambiguous: {len(standing)} separate {what} ({shares} %){rest}"
    width = standing[0].radius_deg  # where 90 % lie
    sure = "unsure" if rest else "clear" if width < 15 else "rough"
    return f"{sure}: one rotation ({shares} %) to within {width:.{0 if width >= 10 else 1}f} degrees{rest}"


def cluster(q: Float[Tensor, "n 4"], radius_deg: float | int | None = None) -> Clusters:
    """Cluster rotations (xyzw, either sign); log densities of the modes are NaN."""
    if radius_deg is not None and not 0 < radius_deg <= 180:
        raise InputError(f"radius_deg must lie between 0 and 180 degrees, got {radius_deg}; try 10.")
    q = q.double().cpu()
    if len(q) > MOST_SAMPLES:
        first = cluster(q[:MOST_SAMPLES], radius_deg)
        nearest = [angles_deg(part, q[:MOST_SAMPLES]).argmin(1) for part in q[MOST_SAMPLES:].split(MOST_SAMPLES)]
        return Clusters(np.concatenate([first.labels, first.labels[torch.cat(nearest).numpy()]]), first.modes)
    angle = angles_deg(q, q).numpy()
    parts: list[np.ndarray] = []
    rest = np.arange(len(q))
    # A sharp mode beside a broad one: what the sharp one's radius leaves over is clustered with a radius of its own.
    while len(rest) > max(NEIGHBOURS, LEAST_SHARE * len(q)):
        sub = angle[np.ix_(rest, rest)]
        labels, count = _linked(sub, _crowding(sub) if radius_deg is None else float(radius_deg))
        new = [rest[labels == k] for k in range(count)]
        parts = _merged(q, angle, parts, new)
        rest = rest[labels < 0]
        if count == 0 or radius_deg is not None:
            break
    found = _bridged(q, angle, [(part, _mode(q, angle, part)) for part in parts])
    found.sort(key=lambda pair: (-len(pair[0]), pair[0][0]))
    largest = len(found[0][0]) if found else 0
    found = [pair for pair in found if len(pair[0]) >= min(LEAST_SHARE * len(q), largest / 4)]
    # a region is what is left between the modes, unless they hold little
    standing = [pair for pair in found if pair[1].kind != "region"]
    found = standing if sum(mode.share for _, mode in standing) >= LEAST_STANDING else found
    labels = np.full(len(q), -1, dtype=np.int64)
    for k, (part, _) in enumerate(found):
        labels[part] = k
    return Clusters(labels, [mode for _, mode in found])


def _bridged(
    q: Float64[Tensor, "n 4"], angle: Float64[np.ndarray, "n n"], found: list[tuple[np.ndarray, Mode]]
) -> list[tuple[np.ndarray, Mode]]:
    """Pieces of one curve joined: along a continuous symmetry samples leave gaps."""
    for i, (part, mode) in enumerate(found):
        for j, (other, _) in enumerate(found):
            if i != j and mode.kind == "curve" and angle[np.ix_(part, other)].min() < BRIDGE:
                both = np.sort(np.concatenate([part, other]))
                rest = [pair for k, pair in enumerate(found) if k not in (i, j)]
                return _bridged(q, angle, [*rest, (both, _mode(q, angle, both))])
    return found


def _merged(
    q: Float64[Tensor, "n 4"], angle: Float64[np.ndarray, "n n"], sharp: list[np.ndarray], broad: list[np.ndarray]
) -> list[np.ndarray]:
    """Both lists of clusters, but a broad one that is only the tails of a sharp one, or a sharp one that is only the densest
    part of a broad one, makes one with it."""
    if not sharp:
        return broad
    parts = [(part, _mode(q, angle, part)) for part in sharp]
    for new in broad:
        outer, crowding = _mode(q, angle, new), _crowding(angle[np.ix_(new, new)])
        kept = []
        for part, inner in parts:
            apart = float(angles_deg(torch.tensor([inner.quaternion]), torch.tensor([outer.quaternion])))
            tails = outer.kind == "point" and apart <= outer.radius_deg
            same = angle[np.ix_(part, new)].min() <= crowding and 3 * _crowding(angle[np.ix_(part, part)]) > crowding
            if tails or same:
                new = np.sort(np.concatenate([part, new]))
            else:
                kept.append((part, inner))
        parts = [*kept, (new, _mode(q, angle, new))]
    return [part for part, _ in parts]


def angles_deg(p: Float[Tensor, "n 4"], q: Float[Tensor, "m 4"]) -> Float64[Tensor, "n m"]:
    """Geodesic angles in degrees between all pairs of unit xyzw quaternions.

    By arccos, whose error of 1e-6 degrees near 0 does not matter here: 2 atan2 would need n x m x 4 numbers.
    """
    return torch.rad2deg(2 * torch.arccos((p.double() @ q.double().T).abs().clamp_max(1)))


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
        [Mode(**{**asdict(mode), "log_density": float(log_p[k, i])}) for k, mode in enumerate(modes)]
        for i, modes in enumerate(found)
    ]


def _crowding(angle: Float64[np.ndarray, "n n"]) -> float:
    """A radius in degrees that links neighbours of samples as crowded as these are."""
    if len(angle) <= NEIGHBOURS:
        return LEAST_RADIUS
    nearest = np.partition(angle, NEIGHBOURS, axis=1)[:, NEIGHBOURS]
    return float(np.clip(3 * np.quantile(nearest, 0.4), LEAST_RADIUS, MOST_RADIUS))


def _linked(angle: Float64[np.ndarray, "n n"], radius: float) -> tuple[Int64[np.ndarray, " n"], int]:
    """Components of the samples that have enough neighbours; others join the nearest within two radii, or are -1."""
    near = angle <= radius
    core = np.flatnonzero(near.sum(1) > NEIGHBOURS)
    labels = np.full(len(angle), -1, dtype=np.int64)
    if len(core) == 0:
        return labels, 0
    count, component = _components(near[np.ix_(core, core)])
    labels[core] = component
    loose = np.flatnonzero(labels < 0)
    to_core = angle[np.ix_(loose, core)]
    nearest = to_core.argmin(1)
    joins = to_core[np.arange(len(loose)), nearest] <= 2 * radius
    labels[loose[joins]] = component[nearest[joins]]
    return labels, int(count)


def _components(near: Bool[np.ndarray, "n n"]) -> tuple[int, Int64[np.ndarray, " n"]]:
    """Connected components of a symmetric relation: their number, and that of each row. SciPy's would do, but importing it takes a tenth
    of the time of a prediction."""
    labels = np.full(len(near), -1, dtype=np.int64)
    count = 0
    while len(rest := np.flatnonzero(labels < 0)):
        front = rest[:1]
        while len(front):
            labels[front] = count
            front = np.flatnonzero(near[front].any(0) & (labels < 0))
        count += 1
    return count, labels


def _mode(q: Float64[Tensor, "n 4"], angle: Float64[np.ndarray, "n n"], members: np.ndarray) -> Mode:
    """The mode of some of the samples: one step of mean shift from the most crowded of them."""
    sub = angle[np.ix_(members, members)]
    weight = np.clip(1 - (sub / _crowding(sub)) ** 2, 0, None)
    top = int(weight.sum(1).argmax())
    centre = chordal_mean(q[members], torch.from_numpy(weight[top]))
    reach = float(np.quantile(angles_deg(centre[None], q[members])[0].numpy(), 0.9))
    kind = "region" if reach > WIDE else "point"
    if reach > LONG and _straightness(q[members], sub) > STRAIGHT:
        kind = "curve"
    share = len(members) / len(q)
    return Mode(quaternion=_tuple(centre), share=share, radius_deg=reach, log_density=math.nan, kind=kind)


def _straightness(q: Float64[Tensor, "n 4"], angle: Float64[np.ndarray, "n n"]) -> float:
    """How much of the spread about a sample, seen from near (LONG), is along one direction: 1 for a thin curve, 1/3 for a blob.

    The rotations of a continuous symmetry are a straight line in the rotation vectors seen from any of them.
    """
    shares = []
    for i in np.linspace(0, len(q) - 1, min(len(q), 60)).astype(int):
        near = quat_to_rotvec(multiply(inverse(q[i]), q[torch.from_numpy(angle[i] <= LONG)]))
        spread = torch.linalg.eigvalsh(near.T @ near)
        # a handful of points looks straight by chance
        shares.append(float(spread[-1] / spread.sum().clamp_min(1e-12)) if len(near) > 2 * NEIGHBOURS else 0.0)
    return float(np.mean(shares))


def _finite(value: float) -> float | None:
    return round(value, 4) if math.isfinite(value) else None


def _rounded(values: Tensor) -> Any:
    return torch.round(values, decimals=7).tolist()


def _tuple(q: Tensor) -> tuple[float, float, float, float]:
    x, y, z, w = q.double().tolist()
    return x, y, z, w
