"""Rotations that give one picture because it hides what would tell them apart.

A painted object has fewer symmetries than its bare shape: a die's six faces tell all rotations of a cube apart. But a
view R that shows only the five looks the same after a quarter turn about it. In general, for a symmetry g of the bare
shape, R and R g give the same picture just where no point that R shows has another colour than the place that g
brings there. Which points change under which element is found once; a view then asks only which of them it shows.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Bool, Float32, Float64
from scipy.spatial.transform import Rotation

from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.posterior.calibration import ViewClasses
from aquamam.rendering.meshes import FIT_RADIUS, Mesh
from aquamam.rendering.render import RenderSettings
from aquamam.shape.matching import Matcher, Tolerance
from aquamam.shape.surface import Surface, directions, looking_from, seen
from aquamam.shape.symmetries import find_symmetries

VIEWS, POINTS = 60, 50  # views of the object, and points of each
ANGLES = 90  # that stand for all about a continuous axis
CENTRED = 1e-3  # of the radius: farther from the origin, rotations about a centre move the picture


@dataclass(frozen=True, kw_only=True, eq=False)
class Lookalikes:
    """The symmetries of an object's bare shape, and the points whose colour each of them changes."""

    elements: Float64[np.ndarray, "g 4"]  # xyzw, the identity first
    points: Float64[np.ndarray, "p 3"]
    normals: Float64[np.ndarray, "p 3"]  # to the side from which the point was seen
    changed: Float32[np.ndarray, "g p"]  # 1 where it is
    continuous: bool  # whether elements stand for all about an axis

    @classmethod
    @lru_cache(maxsize=16)
    def of(cls, mesh: Mesh, *, shape: SymmetryGroup | None = None) -> "Lookalikes | None":
        """Those of a mesh about its origin; None if no view can hide anything: it has no paint, or its shape no
        symmetry.

        shape: the group of the bare shape about the origin, where it is known; else it is looked for.
        A painted sphere has none here either: its rotations are too many to try.
        """
        if mesh.texture is None and mesh.colours is None:
            return None
        if shape is None:
            found = find_symmetries(mesh, paint=False)
            shape = found.group if np.linalg.norm(found.centre) <= CENTRED * found.radius else None
        if shape is None or shape.order == 1:
            return None
        surface = Surface.of(mesh, centre=(0, 0, 0))
        points, faces, normals = _facing(surface)
        matcher = Matcher(surface, Tolerance(), paint_only=True, part=(points, faces))
        identity = np.array([0.0, 0.0, 0.0, 1.0])
        elements = Rotation.from_quat(shape.equivalents(torch.from_numpy(identity), ANGLES)[1:].numpy())
        changed = np.stack([matcher.repainted(g.inv()) for g in elements])
        return cls(
            elements=np.concatenate([identity[None], elements.as_quat()]),
            points=matcher.points * surface.radius,
            normals=normals[matcher.chosen],
            changed=np.concatenate([np.zeros((1, len(matcher.points)), bool), changed]).astype(np.float32),
            continuous=shape.axis is not None,
        )

    def same(
        self, q: Float64[np.ndarray, "n 4"], distance: float | Float64[np.ndarray, " n"]
    ) -> Bool[np.ndarray, "n g"]:
        """Which elements leave the picture of each rotation (xyzw) as it is, seen from so far away; points that face
        the camera count as shown."""
        eye = Rotation.from_quat(q).inv().apply([0.0, 0.0, 1.0]) * np.reshape(distance, (-1, 1))
        height = (self.points * self.normals).sum(-1)
        shown = (eye @ self.normals.T > height).astype(np.float32)
        return shown @ self.changed.T == 0

    def view_classes(self, distance: float) -> ViewClasses | None:
        """What a posterior must know to give all of one picture equal shares; None with a continuous axis: too many.

        What is hidden from so far away is hidden from anywhere nearer, too.
        """
        if self.continuous:
            return None
        changed = self.changed > 0
        planes = np.concatenate([self.normals, (self.points * self.normals).sum(-1, keepdims=True)], 1)
        # points of one face that the same elements change are one
        rows = np.unique(np.concatenate([planes.round(6), changed.T], 1)[changed.any(0)], axis=0)
        return ViewClasses(
            elements=torch.from_numpy(self.elements),
            planes=torch.from_numpy(rows[:, :4]),
            changed=torch.from_numpy(rows[:, 4:].T > 0),
            distance=distance,
        )

    def equivalents(
        self, q: Float64[np.ndarray, "n 4"], distance: float | Float64[np.ndarray, " n"]
    ) -> list[Float64[np.ndarray, "_ 4"]]:
        """For each rotation (xyzw) all that give its picture from so far away, itself first."""
        views, elements = Rotation.from_quat(q), Rotation.from_quat(self.elements)
        return [(one * elements[which]).as_quat(canonical=True) for one, which in zip(views, self.same(q, distance))]


def _facing(surface: Surface) -> tuple[np.ndarray, ...]:
    """Points, their faces, and normals to the side from which they were seen, whichever way the faces are wound."""
    rng, found = np.random.default_rng(0), []
    for R in looking_from(directions(VIEWS), 1.0 * np.arange(VIEWS)):
        points, faces = seen(surface.mesh, R[None])
        chosen = rng.permutation(len(points))[:POINTS]
        points, normals = points[chosen], surface.normals[faces[chosen]]
        eye = R.T @ np.array([0, 0, RenderSettings().distance]) / FIT_RADIUS
        away = (normals * (eye - points)).sum(-1, keepdims=True) < 0
        found.append((points, faces[chosen], np.where(away, -normals, normals)))
    return tuple(np.concatenate(column) for column in zip(*found))
