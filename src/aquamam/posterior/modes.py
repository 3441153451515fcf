"""Separate modes of a posterior, found by clustering its samples.

Samples with enough neighbours within a radius are linked, and what is linked is one mode, however long the chain. So a
continuous symmetry is one extended mode (a curve), and a view with four equal answers has four.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64, Int64
from torch import Tensor

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
    log_density: float = math.nan  # at the quaternion, volume pi^2, where it was asked for
    kind: str  # "point", "curve" (a continuous symmetry), or "region" when little stands out

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON, rounded to what samples can tell."""
        known = math.isfinite(self.log_density)
        density = {} if math.isnan(self.log_density) else {"log_density": round(self.log_density, 4) if known else None}
        return {
            "quaternion_xyzw": [round(x, 6) for x in self.quaternion],
            "share": round(self.share, 4),
            "radius_deg": round(self.radius_deg, 2),
            **density,
            "kind": self.kind,
        }


class Clusters(NamedTuple):
    """Samples by mode: labels 0, 1, ... with the largest cluster first, -1 for stragglers."""

    labels: Int64[np.ndarray, " n"]
    modes: list[Mode]  # without densities


def describe(modes: Sequence[Mode]) -> str:
    """One phrase that says whether a view is clear, ambiguous or undecided."""
    standing = [mode for mode in modes if mode.kind != "region"]
    spread = 1 - sum(mode.share for mode in standing)
    if not modes:
        return "undecided: no samples lie close together; draw more, or the probability is spread over a wide region"
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


def angles_deg(p: Float[Tensor, "n 4"], q: Float[Tensor, "m 4"]) -> Float64[Tensor, "n m"]:
    """Geodesic angles in degrees between all pairs of unit xyzw quaternions.

    By arccos, whose error of 1e-6 degrees near 0 does not matter here: 2 atan2 would need n x m x 4 numbers.
    """
    return torch.rad2deg(2 * torch.arccos((p.double() @ q.double().T).abs().clamp_max(1)))


def cluster(q: Float[Tensor, "n 4"]) -> Clusters:
    """The modes of samples, and which sample belongs to which."""
    q = q.double().cpu()
    if len(q) > MOST_SAMPLES:
        first = cluster(q[:MOST_SAMPLES])
        nearest = [angles_deg(part, q[:MOST_SAMPLES]).argmin(1) for part in q[MOST_SAMPLES:].split(MOST_SAMPLES)]
        return Clusters(np.concatenate([first.labels, first.labels[torch.cat(nearest).numpy()]]), first.modes)
    found = sorted(_Samples(q).parts(), key=lambda part: (-len(part.members), part.members[0]))
    largest = len(found[0].members) if found else 0
    found = [part for part in found if len(part.members) >= min(LEAST_SHARE * len(q), largest / 4)]
    # a region is what is left between the modes, unless they hold little
    standing = [part for part in found if part.mode.kind != "region"]
    found = standing if sum(part.mode.share for part in standing) >= LEAST_STANDING else found
    labels = np.full(len(q), -1, dtype=np.int64)
    for k, part in enumerate(found):
        labels[part.members] = k
    return Clusters(labels, [part.mode for part in found])


class _Part(NamedTuple):
    members: Int64[np.ndarray, " m"]
    spacing: float  # a radius in degrees that links neighbours of samples as crowded as these are
    mode: Mode


class _Samples:
    """Samples with all angles between them, in degrees."""

    def __init__(self, q: Float64[Tensor, "n 4"]):
        self.q, self.angle = q, angles_deg(q, q).numpy()

    def parts(self) -> list[_Part]:
        """Linked samples. What a sharp mode's radius leaves over is linked with a radius of its own: a broad mode."""
        parts: list[_Part] = []
        rest = np.arange(len(self.q))
        while len(rest) > max(NEIGHBOURS, LEAST_SHARE * len(self.q)):
            angle = self.angle[np.ix_(rest, rest)]
            labels = _linked(angle, _spacing(angle))
            new = [self.part(rest[labels == k]) for k in range(labels.max() + 1)]
            for broad in new if parts else ():
                parts = self.merged(parts, broad)
            parts, rest = parts or new, rest[labels < 0]
            if not new:
                break
        return self.bridged(parts)

    def part(self, *members: np.ndarray) -> _Part:
        """One part of some of the samples; its mode is one step of mean shift from the most crowded of them."""
        every = np.sort(np.concatenate(members))
        q, angle = self.q[every], self.angle[np.ix_(every, every)]
        spacing = _spacing(angle)
        weight = np.clip(1 - (angle / spacing) ** 2, 0, None)
        centre = chordal_mean(q, torch.from_numpy(weight[weight.sum(1).argmax()]))
        reach = float(np.quantile(angles_deg(centre[None], q)[0].numpy(), 0.9))
        straight = reach > LONG and _straightness(q, angle) > STRAIGHT
        kind = "curve" if straight else "region" if reach > WIDE else "point"
        share = len(every) / len(self.q)
        return _Part(every, spacing, Mode(quaternion=as_tuple(centre), share=share, radius_deg=reach, kind=kind))

    def merged(self, parts: list[_Part], broad: _Part) -> list[_Part]:
        """All parts, but those of which the broad one is only the tails, or that are only its densest part, as one."""
        kept, members = [], broad.members
        for part in parts:
            apart = angles_deg(torch.tensor([part.mode.quaternion]), torch.tensor([broad.mode.quaternion]))
            tails = broad.mode.kind == "point" and float(apart) <= broad.mode.radius_deg
            if tails or self.gap(part.members, members) <= broad.spacing < 3 * part.spacing:
                members = np.concatenate([members, part.members])
            else:
                kept.append(part)
        return [*kept, self.part(members)]

    def bridged(self, parts: list[_Part]) -> list[_Part]:
        """Pieces of one curve joined: along a continuous symmetry samples leave gaps."""
        for a, b in itertools.permutations(parts, 2):
            if a.mode.kind == "curve" and self.gap(a.members, b.members) < BRIDGE:
                rest = [part for part in parts if part is not a and part is not b]
                return self.bridged([*rest, self.part(a.members, b.members)])
        return parts

    def gap(self, a: np.ndarray, b: np.ndarray) -> float:
        return self.angle[np.ix_(a, b)].min()


def _spacing(angle: Float64[np.ndarray, "n n"]) -> float:
    if len(angle) <= NEIGHBOURS:
        return LEAST_RADIUS
    nearest = np.partition(angle, NEIGHBOURS, axis=1)[:, NEIGHBOURS]
    return float(np.clip(3 * np.quantile(nearest, 0.4), LEAST_RADIUS, MOST_RADIUS))


def _linked(angle: Float64[np.ndarray, "n n"], radius: float) -> Int64[np.ndarray, " n"]:
    """Components of the samples that have enough neighbours; others join the nearest within two radii, or are -1."""
    near = angle <= radius
    core = np.flatnonzero(near.sum(1) > NEIGHBOURS)
    labels = np.full(len(angle), -1, dtype=np.int64)
    if len(core):
        labels[core] = _components(near[np.ix_(core, core)])
        loose = np.flatnonzero(labels < 0)
        to_core = angle[np.ix_(loose, core)]
        joins = to_core.min(1) <= 2 * radius
        labels[loose[joins]] = labels[core[to_core.argmin(1)[joins]]]
    return labels


def _components(near: Bool[np.ndarray, "n n"]) -> Int64[np.ndarray, " n"]:
    """Numbers of the connected components of a symmetric relation; importing SciPy's takes a tenth of a prediction."""
    labels = np.full(len(near), -1, dtype=np.int64)
    while len(rest := np.flatnonzero(labels < 0)):
        front, number = rest[:1], labels.max() + 1
        while len(front):
            labels[front] = number
            front = np.flatnonzero(near[front].any(0) & (labels < 0))
    return labels


def _straightness(q: Float64[Tensor, "n 4"], angle: Float64[np.ndarray, "n n"]) -> float:
    """How much of the spread about a sample, seen from near (LONG), is along one direction: 1 for a thin curve, 1/3 for
    a blob. A continuous symmetry's rotations are a straight line in the rotation vectors seen from any of them."""
    shares = []
    for i in np.linspace(0, len(q) - 1, min(len(q), 60)).astype(int):
        near = quat_to_rotvec(multiply(inverse(q[i]), q[torch.from_numpy(angle[i] <= LONG)]))
        spread = torch.linalg.eigvalsh(near.T @ near)
        # a handful of points looks straight by chance
        shares.append(float(spread[-1] / spread.sum().clamp_min(1e-12)) if len(near) > 2 * NEIGHBOURS else 0.0)
    return float(np.mean(shares))


def as_tuple(q: Float[Tensor, "4"]) -> tuple[float, float, float, float]:
    x, y, z, w = q.double().tolist()
    return x, y, z, w
