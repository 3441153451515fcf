"""Whether a rotation leaves an object unchanged: tried on points of its visible surface, and then on renders.

A surface that moves by less than a pixel changes what its outline and the edges of its paint look like; nobody sees
that. So a pixel of a render differs by as much as its colour lies outside the range of the 3 x 3 pixels at the same
place of the other render.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.ndimage import maximum_filter, minimum_filter
from scipy.spatial.transform import Rotation

from aquamam.errors import require
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings, render
from aquamam.shape.surface import Points, Surface, directions, looking_from

VIEWS = looking_from(directions(8), 1.0 + np.arange(8) * 2.4)
LEVELS = 25  # of 255: what a pixel may change without looking another

Part = tuple[Points, Int64[np.ndarray, " n"]]  # points of a surface, and their faces
POINTS = 3000
FIRST = 200  # of them decide most cases


class Difference(NamedTuple):
    """How different a rotated object looks, in the view that shows it most."""

    share: float  # of the object's pixels that change by more than LEVELS
    largest: float  # change of a pixel, in levels


class RenderComparison:
    """An object about its origin, seen in a few views that it fills, to compare rotations of it with."""

    def __init__(self, mesh: Mesh, views: Float64[np.ndarray, "n 3 3"] = VIEWS, size: int = 96):
        self.mesh, self.views, self.settings = mesh, views, RenderSettings(size=size)
        self.images = render(mesh, views, self.settings, alpha=True)

    def difference(self, g: Rotation) -> Difference:
        """What changes when the object is rotated by g in its own frame before it is looked at."""
        other = render(self.mesh, self.views @ g.as_matrix(), self.settings, alpha=True)
        # levels by which pixels of either image lie outside the range of their neighbourhood in the other
        outside = np.zeros(other.shape[:-1], np.int16)
        for a, b in ((self.images, other), (other, self.images)):
            high, low = (limit(b[..., :3], (1, 3, 3, 1)).astype(np.int16) for limit in (maximum_filter, minimum_filter))
            outside = np.maximum(outside, np.maximum(a[..., :3] - high, low - a[..., :3]).max(-1))
        covered = ((self.images[..., 3] > 0) | (other[..., 3] > 0)).sum((-1, -2))
        share = (outside > LEVELS).sum((-1, -2)) / np.maximum(covered, 1)
        return Difference(float(share.max()), float(outside.max()))


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """When a rotated object looks the same."""

    distance: float = 0.01  # of the radius, from any visible point to the surface: one pixel of a 224-pixel view
    pixels: float = 0.002  # of the object's pixels may change by more than that, in any view

    def __post_init__(self) -> None:
        rule = f"the tolerance must be 0.0001 to 0.2 of the radius, got {self.distance}; try 0.01."
        require(1e-4 <= self.distance <= 0.2, rule)


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
        return float(self.surface.match(g.apply(self.points)).distance.max())

    def _keeps_paint(self, g: Rotation, count: int | None = None) -> bool:
        few = self.tolerance.pixels / 2 * len(self.points)
        return not self.surface.painted or int(self.repainted(g, count, quick=True).sum()) <= few

    def repainted(self, g: Rotation, count: int | None = None, *, quick: bool = False) -> Bool[np.ndarray, " n"]:
        """Which of the points find no such colour within the tolerance of where they come to lie.

        With `quick`, where a tenth or more find another colour, those at edges of paint are not looked at again.
        """
        there, own = g.apply(self.points[:count]), self.colours[:count]
        match = self.surface.match(there, self.tolerance.distance)
        changed = np.abs(self.surface.paint(match.face, match.place) - own).max(-1) > LEVELS
        wrong = np.flatnonzero(changed)
        if len(wrong) and not (quick and len(wrong) > len(changed) // 10):
            # the point may lie on the other side of an edge of paint: all colours as far as the tolerance count
            seen = self.surface.cloud_paint[self.surface.around(there[wrong], self.tolerance.distance)]
            changed[wrong] = ((own[wrong] < seen.min(1) - LEVELS) | (own[wrong] > seen.max(1) + LEVELS)).any(-1)
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
