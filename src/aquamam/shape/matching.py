"""Whether a rotation leaves an object unchanged: tried on points of its visible surface, and then on renders."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.spatial.transform import Rotation

from aquamam.errors import InputError
from aquamam.shape.surface import Points, Surface
from aquamam.shape.visual import LEVELS, RenderComparison, rotation_key

Part = tuple[Points, Int64[np.ndarray, " n"]]  # points of a surface, and their faces
POINTS = 3000
FIRST = 200  # of them decide most cases


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """When a rotated object looks the same."""

    distance: float = 0.01  # of the radius, from any visible point to the surface: one pixel of a 224-pixel view
    levels: int = LEVELS  # of 255, for colours
    pixels: float = 0.002  # of the object's pixels may change by more than that, in any view

    def __post_init__(self) -> None:
        if not 1e-4 <= self.distance <= 0.2:
            raise InputError(f"the tolerance must be 0.0001 to 0.2 of the radius, got {self.distance}; try 0.01.")


class Matcher:
    """Says whether a rotation leaves a surface, and its paint if it has any, unchanged.

    paint_only: the surface is known to stay under every rotation that will be tried.
    part: points of the surface, and their faces, which alone must come to lie on it; else all that can be seen.
    """

    def __init__(self, surface: Surface, tolerance: Tolerance, *, paint_only: bool = False, part: Part | None = None):
        self.surface, self.tolerance, self.paint_only = surface, tolerance, paint_only
        points, faces = part or (surface.points, surface.faces)
        self.chosen = np.random.default_rng(0).permutation(len(points))[:POINTS]
        self.points, self.faces = points[self.chosen], faces[self.chosen]
        self.colours = surface.paint(self.faces, self.points)
        self._distances: dict[bytes, float] = {}

    def holds(self, g: Rotation) -> bool:
        """Whether every point stays on the surface, and all but a few find their colour there."""
        stays = self.seems_to_hold(g) and (self.paint_only or self.distance(g) <= self.tolerance.distance)
        return stays and self._keeps_paint(g)

    def all_hold(self, elements: Rotation) -> bool:
        return all(self.holds(g) for g in elements)

    def seems_to_hold(self, g: Rotation) -> bool:
        """Whether the first few points stay on the surface and find their colours."""
        enough = self.tolerance.distance
        stays = self.paint_only or self.surface.match(g.apply(self.points[:FIRST]), enough).distance.max() <= enough
        return bool(stays) and self._keeps_paint(g, 5 * FIRST)

    def distance(self, g: Rotation) -> float:
        """The farthest that any of the points gets from the surface."""
        key = rotation_key(g)
        if key not in self._distances:
            self._distances[key] = float(self.surface.match(g.apply(self.points)).distance.max())
        return self._distances[key]

    def _keeps_paint(self, g: Rotation, count: int | None = None) -> bool:
        few = self.tolerance.pixels / 2 * len(self.points)
        return not self.surface.painted or int(self.repainted(g, count, quick=True).sum()) <= few

    def repainted(self, g: Rotation, count: int | None = None, *, quick: bool = False) -> Bool[np.ndarray, " n"]:
        """Which of the points find no such colour within the tolerance of where they come to lie.

        With `quick`, where a tenth or more find another colour, those at edges of paint are not looked at again.
        """
        there, own, levels = g.apply(self.points[:count]), self.colours[:count], self.tolerance.levels
        match = self.surface.match(there, self.tolerance.distance)
        changed = np.abs(self.surface.paint(match.face, match.place) - own).max(-1) > levels
        wrong = np.flatnonzero(changed)
        if len(wrong) and not (quick and len(wrong) > len(changed) // 10):
            # the point may lie on the other side of an edge of paint: all colours as far as the tolerance count
            seen = self.surface.cloud_paint[self.surface.around(there[wrong], self.tolerance.distance)]
            changed[wrong] = ((own[wrong] < seen.min(1) - levels) | (own[wrong] > seen.max(1) + levels)).any(-1)
        return changed

    @cached_property
    def renders(self) -> RenderComparison:
        return RenderComparison(self.surface.fitting)

    def looks_same(self, g: Rotation) -> bool:
        return self.renders.difference(g).share <= self.tolerance.pixels

    # --- many rotations at once ---------------------------------------------------------------------------------------

    def scores(self, tried: Rotation, count: int = 150, rough: bool = False) -> Float64[np.ndarray, " n"]:
        """Mean distance to the surface's cloud, in radii, plus with paint the mean change of colour, 255 being 1."""
        scores = []
        for part in np.array_split(tried.as_matrix(), max(1, len(tried) * count // 50_000)):
            there = np.einsum("gij,pj->gpi", part, self.points[:count])
            index = self.surface.near(there, exact=0.0 if rough else 0.04)[..., 0]
            score = np.linalg.norm(self.surface.cloud[0][index] - there, axis=-1).mean(-1)
            if self.surface.painted:
                change = np.abs(self.surface.cloud_paint[index] - self.colours[:count]).max(-1)
                score = score + change.mean(-1) / 255
            scores.append(score)
        return np.concatenate(scores)

    def free_axis(self) -> Float64[np.ndarray, "3"]:
        r"""The axis about which small rotations move the surface least out of itself: the least eigenvector of
        $\sum_i (x_i × n_i)(x_i × n_i)^T$, which a surface of revolution has as its axis."""
        lever = np.cross(self.points, self.surface.normals[self.faces])
        return np.linalg.eigh(lever.T @ lever)[1][:, 0]

    def refined(self, start: Rotation, steps: int = 10, count: int = 150, rough: bool = False) -> Rotation:
        r"""Each rotation moved so that points lie on the planes of the surface points nearest to them: Gauss-Newton on
        $\sum_i (n_i · (g x_i - y_i))^2$, damped so that a free rotation stays; what fits badly does not pull."""
        places, faces = self.surface.cloud
        g = Rotation.from_quat(start.as_quat().reshape(-1, 4))
        for _ in range(steps if len(g) else 0):
            there = np.einsum("gij,pj->gpi", g.as_matrix(), self.points[:count])
            index = self.surface.near(there, exact=0.0 if rough else 0.04)[..., 0]
            normal = self.surface.normals[faces[index]]
            gap = ((there - places[index]) * normal).sum(-1)
            limit = np.maximum(0.02, 2.5 * np.median(np.abs(gap), axis=1, keepdims=True))
            weight = (np.abs(gap) <= limit).astype(float)
            lever = np.cross(there, normal)
            scatter = (lever * weight[..., None]).swapaxes(-1, -2) @ lever
            damping = (1e-5 * np.trace(scatter, axis1=1, axis2=2) + 1e-12)[:, None, None] * np.eye(3)
            step = -np.linalg.solve(scatter + damping, (lever * (weight * gap)[..., None]).sum(1)[..., None])[..., 0]
            size = np.linalg.norm(step, axis=-1, keepdims=True)
            g = Rotation.from_rotvec(step * np.minimum(1.0, 0.3 / np.maximum(size, 1e-12))) * g
            if size.max() < 1e-8:
                break
        return g
