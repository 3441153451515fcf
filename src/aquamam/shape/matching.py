"""Whether a turn leaves an object unchanged: tried on points of its visible surface, and then by looking."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.spatial.transform import Rotation

from aquamam.errors import InputError
from aquamam.shape.visual import LEVELS, Look
from aquamam.shape.surface import Surface

Points = tuple[Float64[np.ndarray, "n 3"], Int64[np.ndarray, " n"]]
POINTS = 3000
FIRST = 200  # of them decide most cases


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """When a turned object looks the same."""

    distance: float = 0.01  # of the radius, from any visible point to the surface: one pixel of a 224-pixel view
    levels: int = LEVELS  # of 255, for colours
    pixels: float = 0.002  # of the object's pixels may change by more than that, in any view

    def __post_init__(self) -> None:
        if not 1e-4 <= self.distance <= 0.2:
            raise InputError(
                f"the tolerance must be from 0.0001 to 0.2 of the radius, got {self.distance}; 0.01 is the default."
            )


class Judge:
    """Says whether a turn leaves a surface, and its paint if it has any, unchanged.

    paint_only: the surface is known to stay under every turn that will be tried.
    part: points of the surface, and their faces, which alone must come to lie on it; else all that can be seen.
    """

    def __init__(self, surface: Surface, tolerance: Tolerance, *, paint_only: bool = False, part: Points | None = None):
        self.surface, self.tolerance, self.paint_only = surface, tolerance, paint_only
        points, faces = part or (surface.points, surface.faces)
        self.chosen = np.random.default_rng(0).permutation(len(points))[:POINTS]
        self.points, self.faces = points[self.chosen], faces[self.chosen]
        self.colours = surface.paint(self.faces, self.points)
        self._distances: dict[bytes, float] = {}

    def holds(self, turn: Rotation) -> bool:
        """Whether every point stays on the surface, and finds its colour there."""
        return self.seems_to_hold(turn) and self._stays(turn) and self._keeps_paint(turn)

    def all_hold(self, turns: Rotation) -> bool:
        """Whether all of these do."""
        return all(self.holds(g) for g in turns)

    def seems_to_hold(self, turn: Rotation) -> bool:
        """Whether the first few points stay on the surface and find their colours."""
        enough = self.tolerance.distance
        stays = self.paint_only or self.surface.match(turn.apply(self.points[:FIRST]), enough).distance.max() <= enough
        limit = self.tolerance.pixels / 2 * len(self.points)
        return bool(stays and (not self.surface.painted or self._repainted(turn, slice(0, 5 * FIRST)) <= limit))

    def _stays(self, turn: Rotation) -> bool:
        return self.paint_only or self.distance(turn) <= self.tolerance.distance

    def distance(self, turn: Rotation) -> float:
        """The farthest that any of the points gets from the surface."""
        key = np.round(turn.as_quat(canonical=True), 9).tobytes()
        if key not in self._distances:
            self._distances[key] = float(self.surface.match(turn.apply(self.points)).distance.max())
        return self._distances[key]

    def _keeps_paint(self, turn: Rotation) -> bool:
        """Whether all but a few points find their colour within the tolerance of where they come to lie."""
        limit = self.tolerance.pixels / 2 * len(self.points)
        return not self.surface.painted or self._repainted(turn, slice(0, None)) <= limit

    def _repainted(self, turn: Rotation, which: slice) -> int:
        changed = self._changed(turn, which)
        if changed.sum() > len(changed) // 10:
            return int(changed.sum())
        return int(self._surely(changed, turn, which).sum())

    def repainted(self, turn: Rotation) -> Bool[np.ndarray, " n"]:
        """The points that find no such colour within the tolerance of where they come to lie."""
        return self._surely(self._changed(turn, slice(0, None)), turn, slice(0, None))

    def _changed(self, turn: Rotation, which: slice) -> Bool[np.ndarray, " n"]:
        match = self.surface.match(turn.apply(self.points[which]), self.tolerance.distance)
        there = self.surface.paint(match.face, match.place)
        return np.abs(there - self.colours[which]).max(-1) > self.tolerance.levels

    def _surely(self, changed: Bool[np.ndarray, " n"], turn: Rotation, which: slice) -> Bool[np.ndarray, " n"]:
        """Without those at an edge of paint, which may lie on the other side of it: all colours as far as the tolerance count."""
        wrong = np.flatnonzero(changed)
        if not len(wrong):
            return changed
        own, levels = self.colours[which][wrong], self.tolerance.levels
        around = self.surface.around(turn.apply(self.points[which][wrong]), self.tolerance.distance)
        low, high = np.full(own.shape, np.inf), np.full(own.shape, -np.inf)
        for index in around.T:
            seen = self.surface.cloud_paint[index]
            low, high = np.minimum(low, seen), np.maximum(high, seen)
        surely = np.zeros_like(changed)
        surely[wrong] = ((own < low - levels) | (own > high + levels)).any(-1)
        return surely

    # --- by looking ---------------------------------------------------------------------------------------------------

    @cached_property
    def look(self) -> Look:
        return Look(self.surface.fitting)

    def looks_same(self, turn: Rotation) -> bool:
        """Whether renders hardly change."""
        return self.look.difference(turn).share <= self.tolerance.pixels

    # --- many turns at once -------------------------------------------------------------------------------------------

    def scores(self, turns: Rotation, count: int = 150, rough: bool = False) -> Float64[np.ndarray, " n"]:
        """Mean distance to the surface's cloud, in radii, plus with paint the mean change of colour, in parts of 255."""
        scores = []
        for part in np.array_split(turns.as_matrix(), max(1, len(turns) * count // 50_000)):
            there = np.einsum("gij,pj->gpi", part, self.points[:count])
            index = self.surface.near(there, rough)
            score = np.linalg.norm(self.surface.cloud[0][index] - there, axis=-1).mean(-1)
            if self.surface.painted:
                change = np.abs(self.surface.cloud_paint[index] - self.colours[:count]).max(-1)
                score = score + change.mean(-1) / 255
            scores.append(score)
        return np.concatenate(scores)

    def free_axis(self) -> Float64[np.ndarray, "3"]:
        r"""The axis about which small turns move the surface least out of itself: the least eigenvector of
        $\sum_i (x_i × n_i)(x_i × n_i)^T$, which a surface of revolution has as its axis."""
        lever = np.cross(self.points, self.surface.normals[self.faces])
        return np.linalg.eigh(lever.T @ lever)[1][:, 0]

    def pulled(self, turns: Rotation, steps: int = 10, count: int = 150, rough: bool = False) -> Rotation:
        r"""Each turn moved so that points lie on the planes of the surface points nearest to them: Gauss-Newton on
        $\sum_i (n_i · (g x_i - y_i))^2$, damped so that a free turn stays where it is; what fits badly does not pull."""
        places, faces = self.surface.cloud
        turns = Rotation.from_quat(turns.as_quat().reshape(-1, 4))
        for _ in range(steps if len(turns) else 0):
            there = np.einsum("gij,pj->gpi", turns.as_matrix(), self.points[:count])
            index = self.surface.near(there, rough)
            normal = self.surface.normals[faces[index]]
            gap = ((there - places[index]) * normal).sum(-1)
            limit = np.maximum(0.02, 2.5 * np.median(np.abs(gap), axis=1, keepdims=True))
            weight = (np.abs(gap) <= limit).astype(float)
            lever = np.cross(there, normal)
            scatter = (lever * weight[..., None]).swapaxes(-1, -2) @ lever
            damping = (1e-5 * np.trace(scatter, axis1=1, axis2=2) + 1e-12)[:, None, None] * np.eye(3)
            step = -np.linalg.solve(scatter + damping, (lever * (weight * gap)[..., None]).sum(1)[..., None])[..., 0]
            size = np.linalg.norm(step, axis=-1, keepdims=True)
            turns = Rotation.from_rotvec(step * np.minimum(1.0, 0.3 / np.maximum(size, 1e-12))) * turns
            if size.max() < 1e-8:
                break
        return turns
