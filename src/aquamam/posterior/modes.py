"""Separate modes of a posterior, found by clustering its samples.

Samples are clustered on SO(3): those with enough neighbours within a radius are linked, and what is linked is one mode, however long the
chain. So a continuous symmetry is one extended mode (a curve), and a view with four equal answers has four.
"""

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

from aquamam.errors import InputError
from aquamam.geometry.rotations import chordal_mean, inverse, multiply, quat_to_rotvec

NEIGHBOURS = 5  # a sample with fewer within the radius is a straggler and links nothing
LEAST_SHARE = 0.02  # smaller clusters are modes only where all are small (an icosahedron has 60)
LEAST_STANDING = 0.25  # share of points and curves below which a posterior is a region with specks
LEAST_RADIUS, MOST_RADIUS = 5.0, 60.0  # degrees; 250 uniform rotations are linked at about 50
BRIDGE = 20.0  # degrees: what lies so near to a curve belongs to it
LONG, WIDE = 45.0, 60.0  # degrees: a mode may be a curve from the first, and is else a region from the second
STRAIGHT = 0.7  # share of the spread along one direction that makes a curve; tubes of up to 8 degrees have it
MOST_SAMPLES = 4000  # clustered against each other, which takes n^2 numbers; more join the nearest of these


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
            "log_density": round(self.log_density, 4) if math.isfinite(self.log_density) else None,
            "kind": self.kind,
        }


class Clusters(NamedTuple):
    """Samples by mode: labels 0, 1, ... with the largest cluster first, -1 for stragglers; the modes' densities are left for later."""

    labels: Int64[np.ndarray, " n"]
    modes: list[Mode]


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
    return Mode(quaternion=as_tuple(centre), share=share, radius_deg=reach, log_density=math.nan, kind=kind)


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


def as_tuple(q: Float[Tensor, "4"]) -> tuple[float, float, float, float]:
    """A quaternion as plain numbers."""
    x, y, z, w = q.double().tolist()
    return x, y, z, w
