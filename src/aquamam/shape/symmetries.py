"""The rotations that leave an object's look unchanged, found from its mesh.

Every such rotation is about the centroid of the convex hull and keeps the hull's moments (`surface`). They tell where
axes can lie: three different second moments leave three half turns to try, two equal ones an axis, three equal ones all
rotations. What is tried is refined by matching points to planes, kept if no visible point leaves the surface by more
than the tolerance, made into the largest true group (`group_fit`), and confirmed by renders. Triangles are
only used as the surface that they are, so a finer or other triangulation changes nothing.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.spatial import ConvexHull, QhullError
from scipy.spatial.distance import pdist
from scipy.spatial.transform import Rotation

from aquamam.geometry.grid import so3_grid
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.rendering.meshes import Mesh
from aquamam.shape.group_fit import APART, NONE, SPHERE, NamedGroup, about, across, distinct, fit_group, revolution
from aquamam.shape.matching import Difference, Matcher, Tolerance
from aquamam.shape.surface import Surface, directions

ANGLES = np.arange(1440) * (2 * math.pi / 1440)  # steps of a quarter degree resolve 180 teeth
CLOSE = 10  # times the tolerance: moments that differ less may belong to an object that looks the same
MOST = 240  # elements of a group that is found one by one
Confirm = Callable[[Rotation], bool]
LOOSE = 5  # times the tolerance: what near-symmetries may miss

LONG = {"T": "tetrahedral", "O": "octahedral", "I": "icosahedral"}  # names of groups


@dataclass(frozen=True, kw_only=True)
class Symmetries:
    """What was found: a group about a centre, and how well it holds."""

    found: NamedGroup
    centre: tuple[float, float, float]  # in the mesh's coordinates
    radius: float  # there
    painted: bool  # whether colours counted
    tolerance: Tolerance
    distance: float  # of the radius: the farthest that an element takes a visible point from the surface
    seen: Difference  # of the worst element

    @property
    def group(self) -> SymmetryGroup | None:
        """The `SymmetryGroup`; None for a sphere, whose every rotation looks the same."""
        return self.found.group

    @property
    def headline(self) -> str:
        if self.group is None:
            return "every rotation looks the same (sphere)"
        if self.group.order == 1:
            return "no symmetry"
        many = "infinitely many" if self.group.axis is not None else f"{self.group.order:g}"
        return f"{many} rotations look the same ({LONG.get(self.found.name, self.found.name)})"

    def has(self, g: Rotation) -> bool:
        if self.group is None:
            return True
        still = torch.tensor([0.0, 0, 0, 1], dtype=torch.float64)
        return float(self.group.distance(still, torch.from_numpy(g.as_quat()))) < APART

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON, with BOP's entries for models_info.json."""
        return {
            "name": self.found.name,
            "order": None if self.group is None or math.isinf(self.group.order) else self.group.order,
            "of": "geometry and paint" if self.painted else "geometry",
            "centre": list(self.centre),
            "radius": self.radius,
            "group": None if self.group is None else self.group.to_dict(),
            "bop": self.to_bop(),
            "tolerance": self.tolerance.distance,
            "distance": self.distance,
            "pixels": self.seen.share,
            "levels": self.seen.largest,
        }

    def to_bop(self) -> dict[str, Any]:
        """The entries of BOP's models_info.json in the mesh's coordinates; a sphere has three continuous axes there."""
        if self.group is None:
            axes = np.eye(3).tolist()
            return {"symmetries_continuous": [{"axis": axis, "offset": list(self.centre)} for axis in axes]}
        return self.group.to_bop(self.centre)


@dataclass(frozen=True, kw_only=True)
class NearSymmetry:
    """A family of rotations that almost leave the look unchanged."""

    words: str
    rotation: tuple[float, ...]  # xyzw, the one of the family that changes most
    distance: float  # of the radius, largest from a rotated point to the surface
    seen: Difference

    def to_dict(self) -> dict[str, Any]:
        seen = {"pixels": self.seen.share, "levels": self.seen.largest}
        return {"words": self.words, "quaternion_xyzw": list(self.rotation), "distance": self.distance, **seen}


def find_symmetries(mesh: Mesh | Surface, *, paint: bool = True, tolerance: Tolerance | None = None) -> Symmetries:
    """The rotations that leave the look of a mesh unchanged: of its geometry, and with `paint` of its colours too."""
    tolerance = tolerance or Tolerance()
    surface = mesh if isinstance(mesh, Surface) else Surface.of(mesh)
    matcher = Matcher(surface.plain(), tolerance)
    found = _confirmed(matcher, _of_shape(matcher))
    if paint and surface.painted:
        matcher = Matcher(surface, tolerance, paint_only=found.group is None or found.axis is not None)
        if found.group is None:
            kept = _anywhere(matcher)
        elif found.axis is not None:
            kept = _with_axis(matcher, found.axis, flips=len(found.group.elements) > 1)
        else:
            kept = fit_group(_those(matcher.holds, found.samples), matcher.all_hold)
        found = _confirmed(matcher, kept)
    elements = found.samples
    return Symmetries(
        found=found,
        centre=tuple((np.round(surface.centre / surface.radius, 9) * surface.radius + 0.0).tolist()),
        radius=surface.radius,
        painted=matcher.surface.painted,
        tolerance=tolerance,
        distance=max((matcher.distance(g) for g in elements), default=0.0),
        seen=max((matcher.renders.difference(g) for g in elements), default=Difference(0.0, 0.0)),
    )


def _confirmed(matcher: Matcher, found: NamedGroup) -> NamedGroup:
    """The group, or the largest part of it that renders confirm: shading shows marks shallower than the tolerance."""
    elements = found.samples
    good = np.array([matcher.looks_same(g) for g in elements], dtype=bool)
    if good.all():
        return found

    def same(some: Rotation) -> bool:
        return all(matcher.looks_same(g) and matcher.holds(g) for g in some)

    if found.group is None:
        return NONE
    if found.axis is None:
        return fit_group(elements[good], same)
    if good[: len(good) // len(found.group.elements)].all():
        return revolution(found.axis, False)
    return _with_axis(matcher, found.axis, flips=True, confirm=same)


def _of_shape(matcher: Matcher) -> NamedGroup:
    """The group of the surface alone, from where its hull lets axes lie."""
    body, tolerance = matcher.surface.body, matcher.tolerance.distance
    if np.ptp(np.linalg.norm(matcher.points, axis=-1)) <= tolerance:
        return SPHERE
    moments, axes = np.linalg.eigh(body.moments)
    close = CLOSE * tolerance * moments[2]
    if np.linalg.norm(body.skew) > close:  # the object has a top and a bottom
        return _with_axis(matcher, body.skew / np.linalg.norm(body.skew), flips=False)
    low, high = moments[1] - moments[0] < close, moments[2] - moments[1] < close
    if low and high:
        return _anywhere(matcher)
    if low or high:
        return _with_axis(matcher, axes[:, 2 if low else 0], flips=True)
    return fit_group(matcher.refined(Rotation.from_rotvec(math.pi * axes.T)), matcher.all_hold)


def _those(hold: Callable[[Rotation], bool], tried: Rotation) -> Rotation:
    return tried[np.array([hold(g) for g in tried], dtype=bool)]


# --- about a known axis -----------------------------------------------------------------------------------------------


def _with_axis(matcher: Matcher, axis: np.ndarray, *, flips: bool, confirm: Confirm | None = None) -> NamedGroup:
    """The group whose main axis is known; `confirm` has the last word, and then every angle together is out already."""
    if confirm is None and matcher.all_hold(revolution(axis, False).samples):
        return revolution(axis, flips and matcher.holds(Rotation.from_rotvec(math.pi * across(axis, np.zeros(1))[0])))
    good = _best_in_circle(matcher, about(axis, ANGLES[1:]))
    if flips:
        half_turns = Rotation.from_rotvec(math.pi * across(axis, ANGLES[: len(ANGLES) // 2]))
        good = Rotation.concatenate([good, _best_in_circle(matcher, half_turns)])
    return fit_group(good, confirm or matcher.all_hold)


def _best_in_circle(matcher: Matcher, family: Rotation, at_once: int = 24) -> Rotation:
    """The symmetries in a circle of rotations: those that score better than their neighbours are tried, the best first,
    until all of many in a row fail."""
    scores = matcher.scores(family)
    dips = np.flatnonzero((scores <= np.roll(scores, 1)) & (scores <= np.roll(scores, -1)))
    dips, good = dips[np.argsort(scores[dips])], family[:0]
    for start in range(0, len(dips), at_once):
        tried = family[dips[start : start + at_once]]
        if not matcher.paint_only:  # else every angle fits, nothing pulls, and a quarter degree is within the tolerance
            tried = matcher.refined(tried)
        new = _those(matcher.seems_to_hold, tried)
        good = Rotation.concatenate([good, new])
        if not len(new):
            break
    return good


# --- anywhere ---------------------------------------------------------------------------------------------------------


def _anywhere(matcher: Matcher) -> NamedGroup:
    """The group of an object whose hull is as wide as it is long and high, or of a painted sphere."""
    painted = matcher.surface.painted
    axis = _axis_of_paint(matcher) if painted else matcher.free_axis()
    if matcher.all_hold(revolution(axis, False).samples):
        return _with_axis(matcher, axis, flips=True)
    grid = Rotation.from_quat(so3_grid(2).numpy())
    start = grid[np.argsort(matcher.scores(grid, 100, rough=True))[:600]]
    moved = refined_by_paint(matcher, start) if painted else matcher.refined(start, steps=15, rough=True)
    found = distinct(moved)
    best = found[np.argsort(matcher.scores(found, rough=True))[:200]]
    best = best if painted else distinct(matcher.refined(best))
    return fit_group(_closed(matcher, _those(matcher.seems_to_hold, best)), matcher.all_hold)


def _axis_of_paint(matcher: Matcher) -> np.ndarray:
    """The axis about which rotations by one and by two and a half radians fit best."""
    axes, step = directions(400)[:200], 0.1  # half of the sphere
    while step > 1e-3:
        tried = [Rotation.from_rotvec(angle * axes) for angle in (1.0, 2.5)]
        best = int(np.argmin(sum(matcher.scores(one, 1000, rough=step > 0.02) for one in tried)))
        step = step / 2 if best == 0 else step
        axes = axes[best] + np.concatenate([np.zeros((1, 3)), step * across(axes[best], np.arange(6) * (math.pi / 3))])
        axes /= np.linalg.norm(axes, axis=-1, keepdims=True)
    return axes[0]


def refined_by_paint(matcher: Matcher, start: Rotation, keep: int = 60, rounds: int = 16) -> Rotation:
    """Rotations moved a little at a time to where the colours fit better; after a few steps only the best go on."""
    q, step = start, np.full(len(start), 0.12)
    scores = matcher.scores(q, 200, rough=True)
    for round_ in range(rounds):
        if round_ == 6:
            best = np.argsort(scores)[:keep]
            q, step = q[best], step[best]
            scores = matcher.scores(q, 200)
        moves = step[:, None, None] * np.concatenate([np.eye(3), -np.eye(3)])
        tried = Rotation.from_rotvec(moves.reshape(-1, 3)) * Rotation.from_quat(q.as_quat().repeat(6, axis=0))
        new = matcher.scores(tried, 200, rough=round_ < 6).reshape(-1, 6)
        best, better = new.argmin(1), new.min(1) < scores
        chosen = tried[np.arange(len(new)) * 6 + best].as_quat()
        q = Rotation.from_quat(np.where(better[:, None], chosen, q.as_quat()))
        scores, step = np.where(better, new.min(1), scores), np.where(better, step, step / 2)
    return q


def _closed(matcher: Matcher, found: Rotation) -> Rotation:
    """Symmetries and their products; products nearer to one another than the first ones are, are one."""
    if len(found) < 2:
        return found
    cosine = np.abs(found.as_quat() @ found.as_quat().T)[~np.eye(len(found), dtype=bool)].max()
    apart = max(APART, math.acos(min(1.0, cosine)))
    for _ in range(3):
        products = Rotation.concatenate([found, *(g * found for g in found)])
        new = _those(matcher.seems_to_hold, distinct(products, apart)[len(found) :])
        if not len(new) or len(found) + len(new) > MOST:
            break
        found = Rotation.concatenate([found, new])
    return found


# --- what is nearly one -----------------------------------------------------------------------------------------------


def near_symmetries(mesh: Mesh | Surface, exact: Symmetries, most: int = 12) -> list[NearSymmetry]:
    """Rotations that would be symmetries at five times the tolerance, or without paint; the least visible first."""
    surface = mesh if isinstance(mesh, Surface) else Surface.of(mesh)
    loose = replace(exact.tolerance, distance=min(0.2, LOOSE * exact.tolerance.distance))
    matcher = Matcher(surface if exact.painted else surface.plain(), exact.tolerance)
    found = []
    for words, family in _of_shape(Matcher(surface.plain(), loose)).families.items():
        new = _those(lambda g: not exact.has(g), family)
        if len(new):
            seen = [matcher.renders.difference(g) for g in new]
            worst = max(range(len(new)), key=lambda i: seen[i])
            rotation = tuple(new[worst].as_quat(canonical=True).tolist())
            distance = max(matcher.distance(g) for g in new)
            found.append(NearSymmetry(words=words, rotation=rotation, distance=distance, seen=seen[worst]))
    return sorted(found, key=lambda near: near.seen)[:most]


def models_info(mesh: Mesh, found: Symmetries) -> dict[str, Any]:
    """An object's entry of BOP's models_info.json: diameter, box and symmetries, in the mesh's units (BOP's are mm)."""
    corners = mesh.vertices[np.unique(mesh.faces)]
    try:
        rim = corners[ConvexHull(corners).vertices]
    except QhullError:  # a flat sheet
        rim = corners
    rim = rim[:: max(1, len(rim) // 3000)]
    low, high = corners.min(0).tolist(), corners.max(0).tolist()
    entry: dict[str, Any] = {"diameter": float(pdist(rim).max())}
    entry |= {f"min_{axis}": value for axis, value in zip("xyz", low)}
    entry |= {f"size_{axis}": top - bottom for axis, bottom, top in zip("xyz", low, high)}
    return entry | found.to_bop()
