"""The rotations that leave an object's look unchanged, found from its mesh.

Every such rotation turns about the centroid of the convex hull and keeps the hull's moments (`surface`). They tell where axes can lie:
three different second moments leave three half turns to try, two equal ones an axis to turn about, three equal ones all rotations. What is
tried is pulled into place by matching points to planes, kept if no visible point leaves the surface by more than the tolerance, made into
the largest true group (`groups`), and looked at (`looks`). Triangles are only used as the surface that they are, so a finer or other
triangulation changes nothing.
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
from aquamam.shape.group_fit import (
    APART,
    NONE,
    SPHERE,
    NamedGroup,
    across,
    arrow,
    distinct,
    fit_group,
    lines_of,
    revolution,
    turns,
)
from aquamam.shape.visual import Difference
from aquamam.rendering.meshes import Mesh
from aquamam.shape.surface import Surface, directions
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.shape.matching import Judge, Tolerance

ANGLES = 1440  # steps of a quarter degree resolve 180 teeth
EVERY = np.array(
    [0.11, 0.35, 0.74, 1.0, 1.37, 1.93, 2.31, 2.89, 3.3, 4.1, 4.77, 5.6]
)  # radians that stand for every angle
CLOSE = 10  # times the tolerance: moments that differ less may belong to an object that looks the same
MOST = 240  # elements of a group that is found one by one
LOOSE = 5  # times the tolerance: what near-symmetries may miss


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

    def has(self, turn: Rotation) -> bool:
        """Whether a turn is among them."""
        if self.group is None:
            return True
        q = torch.from_numpy(turn.as_quat())
        return float(self.group.distance(torch.tensor([0.0, 0, 0, 1], dtype=torch.float64), q)) < APART

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
        """The entries of BOP's models_info.json, in the mesh's coordinates; a sphere has three continuous axes there."""
        if self.group is None:
            axes = np.eye(3).tolist()
            return {"symmetries_continuous": [{"axis": axis, "offset": list(self.centre)} for axis in axes]}
        return self.group.to_bop(self.centre)


@dataclass(frozen=True, kw_only=True)
class NearSymmetry:
    """A family of rotations that almost leave the look unchanged."""

    words: str
    turn: tuple[float, float, float, float]  # xyzw, the one that changes most of those listed
    distance: float  # of the radius, largest from a turned point to the surface
    seen: Difference

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        seen = {"pixels": self.seen.share, "levels": self.seen.largest}
        return {"words": self.words, "quaternion_xyzw": list(self.turn), "distance": self.distance, **seen}


def find_symmetries(mesh: Mesh | Surface, *, paint: bool = True, tolerance: Tolerance | None = None) -> Symmetries:
    """The rotations about its own centre that leave the look of a mesh unchanged: its geometry's, and with `paint` its colours' too."""
    tolerance = tolerance or Tolerance()
    surface = mesh if isinstance(mesh, Surface) else Surface.of(mesh)
    judge = Judge(surface.plain(), tolerance)
    found = _confirmed(judge, _of_shape(judge))
    if paint and surface.painted:
        judge = Judge(surface, tolerance, paint_only=found.group is None or found.axis is not None)
        found = _confirmed(judge, _of_paint(judge, found))
    elements = found.samples(EVERY)
    return Symmetries(
        found=found,
        centre=tuple((np.round(surface.centre / surface.radius, 9) * surface.radius + 0.0).tolist()),
        radius=surface.radius,
        painted=judge.surface.painted,
        tolerance=tolerance,
        distance=max((judge.distance(g) for g in elements), default=0.0),
        seen=max((judge.look.difference(g) for g in elements), default=Difference(0.0, 0.0)),
    )


def _confirmed(judge: Judge, found: NamedGroup) -> NamedGroup:
    """The group, or the largest part of it that renders confirm: shading shows marks that are shallower than the tolerance."""
    elements = found.samples(EVERY)
    good = np.array([judge.looks_same(g) for g in elements], dtype=bool)
    if good.all():
        return found

    def same(turns: Rotation) -> bool:
        return all(judge.looks_same(g) and judge.holds(g) for g in turns)

    if found.group is None:
        return NONE
    if found.axis is not None:
        upright = good[: len(EVERY)].all()
        return revolution(found.axis, False) if upright else _about(judge, found.axis, flips=True, confirm=same)
    return fit_group(elements[good], same)


# --- geometry ---------------------------------------------------------------------------------------------------------


def _of_shape(judge: Judge) -> NamedGroup:
    """The group of the surface alone, from where its hull lets axes lie."""
    body, tolerance = judge.surface.body, judge.tolerance.distance
    reach = np.linalg.norm(judge.points, axis=-1)
    if reach.max() - reach.min() <= tolerance:
        return SPHERE
    moments, axes = np.linalg.eigh(body.moments)
    close = CLOSE * tolerance * moments[2]
    if np.linalg.norm(body.skew) > close:  # the object has a top and a bottom
        return _about(judge, body.skew / np.linalg.norm(body.skew), flips=False)
    low, high = moments[1] - moments[0] < close, moments[2] - moments[1] < close
    if low and high:
        return _anywhere(judge)
    if low or high:
        return _about(judge, axes[:, 2 if low else 0], flips=True)
    return fit_group(judge.pulled(Rotation.from_rotvec(math.pi * axes.T)), judge.all_hold)


def _about(
    judge: Judge, axis: np.ndarray, *, flips: bool, confirm: Callable[[Rotation], bool] | None = None
) -> NamedGroup:
    """The group whose main axis is known; `confirm` has the last word, and then turns by every angle are out already."""
    if confirm is None and judge.all_hold(turns(axis, EVERY)):
        return revolution(axis, flips and judge.holds(Rotation.from_rotvec(math.pi * across(axis, np.zeros(1))[0])))
    angles = np.arange(ANGLES) * (2 * math.pi / ANGLES)
    good = _best_of(judge, turns(axis, angles[1:]))
    if flips:
        good += _best_of(judge, Rotation.from_rotvec(math.pi * across(axis, angles[: ANGLES // 2])))
    return fit_group(_stack(good), confirm or judge.all_hold)


def _best_of(judge: Judge, family: Rotation, at_once: int = 24) -> list[Rotation]:
    """The symmetries in a family of turns, in a circle: of those that score better than their neighbours the best are tried first,
    until all of many in a row fail."""
    scores = judge.scores(family)
    dips = np.flatnonzero((scores <= np.roll(scores, 1)) & (scores <= np.roll(scores, -1)))
    dips, good = dips[np.argsort(scores[dips])], []
    for start in range(0, len(dips), at_once):
        tried = family[dips[start : start + at_once]]
        if not judge.paint_only:  # where every turn fits, nothing pulls, and a quarter degree is within the tolerance
            tried = judge.pulled(tried)
        new = [g for g in tried if judge.seems_to_hold(g)]
        good += new
        if not new:
            break
    return good


def _stack(elements: list[Rotation]) -> Rotation:
    return Rotation.from_quat(np.array([g.as_quat() for g in elements]).reshape(-1, 4))


def _anywhere(judge: Judge) -> NamedGroup:
    """The group of an object whose hull is as wide as it is long and high, or of a painted sphere."""
    axis = _settled(judge) if judge.surface.painted else judge.free_axis()
    if judge.all_hold(turns(axis, EVERY)):
        return _about(judge, axis, flips=True)
    grid = Rotation.from_quat(so3_grid(2).numpy())
    start = grid[np.argsort(judge.scores(grid, 100, rough=True))[:600]]
    moved = slid(judge, start) if judge.surface.painted else judge.pulled(start, steps=15, count=150, rough=True)
    found = distinct(moved)
    best = found[np.argsort(judge.scores(found, rough=True))[:200]]
    best = best if judge.surface.painted else distinct(judge.pulled(best))
    return fit_group(_closed(judge, best[[judge.seems_to_hold(g) for g in best]]), judge.all_hold)


def _settled(judge: Judge) -> np.ndarray:
    """The axis about which turns by one and by two and a half radians fit best."""
    axes, step = directions(400)[:200], 0.1  # half of the sphere
    while step > 1e-3:
        scores = sum(judge.scores(Rotation.from_rotvec(angle * axes), 1000, rough=step > 0.02) for angle in (1.0, 2.5))
        best = int(np.argmin(scores))
        if best == 0:
            step /= 2
        axes = np.concatenate(
            [axes[best : best + 1], axes[best] + step * across(axes[best], np.arange(6) * (math.pi / 3))]
        )
        axes /= np.linalg.norm(axes, axis=-1, keepdims=True)
    return axes[0]


def slid(judge: Judge, start: Rotation, keep: int = 60, rounds: int = 16) -> Rotation:
    """Turns moved a little at a time to where the colours fit better; after a few steps only the best go on."""
    q, step = start, np.full(len(start), 0.12)
    scores = judge.scores(q, 200, rough=True)
    for round_ in range(rounds):
        if round_ == 6:
            best = np.argsort(scores)[:keep]
            q, step = q[best], step[best]
            scores = judge.scores(q, 200)
        moves = step[:, None, None] * np.concatenate([np.eye(3), -np.eye(3)])
        tried = Rotation.from_rotvec(moves.reshape(-1, 3)) * Rotation.from_quat(q.as_quat().repeat(6, axis=0))
        new = judge.scores(tried, 200, rough=round_ < 6).reshape(-1, 6)
        best, better = new.argmin(1), new.min(1) < scores
        chosen = tried[np.arange(len(new)) * 6 + best].as_quat()
        q = Rotation.from_quat(np.where(better[:, None], chosen, q.as_quat()))
        scores, step = np.where(better, new.min(1), scores), np.where(better, step, step / 2)
    return q


def _closed(judge: Judge, found: Rotation) -> Rotation:
    """Symmetries and their products; those closer to one another than half of what the first ones are, are one."""
    if len(found) > 1:
        cosine = np.abs(found.as_quat() @ found.as_quat().T)[~np.eye(len(found), dtype=bool)].max()
        apart = max(APART, math.acos(min(1.0, cosine)))
        for _ in range(3):
            products = Rotation.concatenate([found, *(g * found for g in found)])
            new = distinct(products, apart)[len(found) :]
            new = [g for g in new if judge.seems_to_hold(g)]
            if not new or len(found) + len(new) > MOST:
                break
            found = Rotation.concatenate([found, *new])
    return found


# --- paint ------------------------------------------------------------------------------------------------------------


def _of_paint(judge: Judge, shape: NamedGroup) -> NamedGroup:
    """The part of the geometry's group that keeps the colours."""
    if shape.group is None:
        return _anywhere(judge)
    if shape.axis is not None:
        return _about(judge, shape.axis, flips=len(shape.group.elements) > 1)
    elements = shape.samples(EVERY)
    return fit_group(elements[[judge.holds(g) for g in elements]] if len(elements) else elements, judge.all_hold)


# --- what is nearly one -----------------------------------------------------------------------------------------------


def near_symmetries(mesh: Mesh | Surface, exact: Symmetries, most: int = 12) -> list[NearSymmetry]:
    """Turns that are no symmetries but would be at five times the tolerance, or without paint; the least visible first."""
    surface = mesh if isinstance(mesh, Surface) else Surface.of(mesh)
    loose = replace(exact.tolerance, distance=min(0.2, LOOSE * exact.tolerance.distance))
    judge = Judge(surface if exact.painted else surface.plain(), exact.tolerance)
    shape = _of_shape(Judge(surface.plain(), loose))
    if shape.group is None:
        families = {"any turn": shape.samples(EVERY)}
    elif shape.axis is not None:
        free = shape.samples(EVERY)
        families = {f"every turn about {arrow(shape.axis)}": free[: len(EVERY)]}
        if len(free) > len(EVERY):
            families[f"half turns across {arrow(shape.axis)}"] = free[len(EVERY) :]
    else:
        families = {
            ("half turn" if line.order == 2 else f"turns by {360 / line.order:.4g}°")
            + f" about {arrow(line.axis)}": turns(line.axis, np.arange(1, line.order) * (2 * math.pi / line.order))
            for line in lines_of(shape.samples(EVERY))
        }
    found = []
    for words, family in families.items():
        new = family[[not exact.has(g) for g in family]]
        if len(new):
            seen = [judge.look.difference(g) for g in new]
            worst = max(range(len(new)), key=lambda i: seen[i])
            x, y, z, w = new[worst].as_quat(canonical=True).tolist()
            distance = max(judge.distance(g) for g in new)
            found.append(NearSymmetry(words=words, turn=(x, y, z, w), distance=distance, seen=seen[worst]))
    return sorted(found, key=lambda near: near.seen)[:most]


def models_info(mesh: Mesh, found: Symmetries) -> dict[str, Any]:
    """An object's entry of BOP's models_info.json: diameter, box and symmetries, in the mesh's units (BOP's are millimetres)."""
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
