"""What can be seen of a mesh: points of its outer surface with their paint, about a centre that no triangulation moves.

Any rotation that leaves an object's look unchanged leaves its convex hull unchanged, and so is about the hull's
centroid. Hidden parts, doubled or inverted faces and the file's own origin do not move that point.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from scipy.ndimage import distance_transform_edt, map_coordinates
from scipy.spatial import ConvexHull, cKDTree
from trimesh.triangles import closest_point, points_to_barycentric

from aquamam.errors import InputError, require
from aquamam.rendering.meshes import FIT_RADIUS, Mesh, crease_normals
from aquamam.rendering.render import RenderSettings, render

VIEWS, PIXELS = 60, 80  # about 150,000 points; what is smaller than a fiftieth of the object may be missed
CELLS = 80  # of the box for rough matches, along each side
SAMPLES = 60_000  # more points, by area, for parts that are seen from few sides
Points = Float64[np.ndarray, "n 3"]


class Body(NamedTuple):
    r"""A convex body of uniform density: its centroid, and the means of $x x^T$ and $|x|^2 x$ about it."""

    centroid: Float64[np.ndarray, "3"]
    moments: Float64[np.ndarray, "3 3"]
    skew: Float64[np.ndarray, "3"]


class Match(NamedTuple):
    """The nearest places of a surface: how far, on which face, and where."""

    distance: Float64[np.ndarray, " n"]
    face: Int64[np.ndarray, " n"]
    place: Points


def hull_body(points: Points) -> Body:
    """Centroid and moments of the convex hull; a flat sheet is a plate without moments across it."""
    middle = points.mean(0)
    _, size, axes = np.linalg.svd(points - middle, full_matrices=False)
    if size[1] < 1e-9 * size[0] or size[0] == 0:
        raise InputError("an object must have an extent in two directions, got points on a line; repair the mesh.")
    if size[2] < 1e-9 * size[0]:
        points = np.concatenate([points - 1e-6 * size[1] * axes[2], points + 1e-6 * size[1] * axes[2]])
    hull = ConvexHull(points)
    inside = np.broadcast_to(points[hull.vertices].mean(0), (len(hull.simplices), 1, 3))
    corners = np.concatenate([inside, points[hull.simplices]], 1)  # tetrahedra that fill it
    volume = np.abs(np.linalg.det(corners[:, 1:] - corners[:, :1]))
    # Keast's five points integrate cubes over a tetrahedron
    nodes = np.concatenate([np.full((1, 4), 1 / 4), np.full((4, 4), 1 / 6) + np.eye(4) / 3])
    x = (nodes @ corners).reshape(-1, 3)
    share = (volume[:, None] / volume.sum() * np.array([-4 / 5, *[9 / 20] * 4])).reshape(-1, 1)
    centroid = (share * x).sum(0)
    x = x - centroid
    return Body(centroid, (share * x).T @ x, (share * (x * x).sum(-1, keepdims=True) * x).sum(0))


def directions(count: int) -> Points:
    """Points spread evenly over the sphere along a golden spiral; no symmetry maps them to one another."""
    z = 1 - (2 * np.arange(count) + 1) / count
    turn = np.pi * (1 + 5**0.5) * np.arange(count)
    return np.stack([np.sqrt(1 - z * z) * np.cos(turn), np.sqrt(1 - z * z) * np.sin(turn), z], -1)


def looking_from(towards: Points, roll: Float64[np.ndarray, " n"] | None = None) -> Float64[np.ndarray, "n 3 3"]:
    """Rotations that show the object to the camera from these directions of its own frame, rolled in the picture."""
    z = towards / np.linalg.norm(towards, axis=-1, keepdims=True)
    helper = np.where(np.abs(z[:, 1:2]) < 0.9, np.array([0.0, 1.0, 0.0]), np.array([0.0, 0.0, -1.0]))
    x = np.cross(helper, z)
    x /= np.linalg.norm(x, axis=-1, keepdims=True)
    y = np.cross(z, x)
    if roll is not None:
        c, s = np.cos(roll)[:, None], np.sin(roll)[:, None]
        x, y = c * x + s * y, c * y - s * x
    return np.stack([x, y, z], 1)


@dataclass(frozen=True, kw_only=True, eq=False)
class Surface:
    """The visible surface of a mesh moved to its centre and scaled to radius 1.

    `points` were seen in one of the views, exactly on their faces; `mesh` has normals by crease angle.
    """

    mesh: Mesh
    body: Body  # of the hull, at the scale of the mesh
    centre: Float64[np.ndarray, "3"]  # in the coordinates of the mesh that came
    radius: float  # there, from the centre to the farthest corner
    points: Points
    faces: Int64[np.ndarray, " n"]

    @classmethod
    def of(cls, mesh: Mesh, centre: Any = None) -> "Surface":
        """The surface of a mesh in any place and of any size, about the centroid of its hull or another centre."""
        used = np.unique(mesh.faces)
        corners = mesh.vertices[used]
        scale = float(np.abs(corners - corners.mean(0)).max())
        require(scale > 0, f"an object must have an extent, {mesh.name!r} is a single point; repair the mesh.")
        if scale < 1e-12 * float(np.abs(corners).max()):
            raise InputError(f"{mesh.name!r} is too far from its origin to leave digits for its shape; move it there.")
        # about the bounding box first: hulls of far or tiny objects lose digits
        middle = (corners.min(0) + corners.max(0)) / 2
        corners = (corners - middle) / scale
        body = hull_body(corners)
        origin = body.centroid if centre is None else (np.asarray(centre, float) - middle) / scale
        reach = float(np.linalg.norm(corners - origin, axis=1).max())
        vertices = np.zeros_like(mesh.vertices)  # of corners that no face uses, too
        vertices[used] = (corners - origin) / reach
        placed = replace(mesh, vertices=vertices, normals=crease_normals(vertices, mesh.faces))
        points, faces = seen(placed, looking_from(directions(VIEWS), 1.0 * np.arange(VIEWS)))
        if len(points) < 100:
            raise InputError(f"{mesh.name!r} fills {len(points)} pixels of {VIEWS} views; remove parts far from it.")
        body = Body((body.centroid - origin) / reach, body.moments / reach**2, body.skew / reach**3)
        centre = middle + scale * origin
        return cls(mesh=placed, body=body, centre=centre, radius=scale * reach, points=points, faces=faces)

    @cached_property
    def triangles(self) -> Float64[np.ndarray, "f 3 3"]:
        return self.mesh.vertices[self.mesh.faces]

    @cached_property
    def normals(self) -> Float64[np.ndarray, "f 3"]:
        a, b, c = self.triangles.swapaxes(0, 1)
        n = np.cross(b - a, c - a)
        return n / np.maximum(np.linalg.norm(n, axis=-1, keepdims=True), 1e-300)

    @cached_property
    def fitting(self) -> Mesh:
        """The mesh at the size that fills a view, about its centre."""
        return replace(self.mesh, vertices=self.mesh.vertices * FIT_RADIUS)

    @property
    def painted(self) -> bool:
        """Whether the mesh brings colours of its own."""
        return self.mesh.texture is not None or self.mesh.colours is not None

    def plain(self) -> "Surface":
        return replace(self, mesh=replace(self.mesh, uv=None, texture=None, colours=None)) if self.painted else self

    # --- nearest places -----------------------------------------------------------------------------------------------

    @cached_property
    def cloud(self) -> tuple[Float64[np.ndarray, "m 3"], Int64[np.ndarray, " m"]]:
        """Points all over the surface and their faces: those that were seen, others by area, and some on edges."""
        rng = np.random.default_rng(0)
        a, b, c = self.triangles.swapaxes(0, 1)
        area = np.linalg.norm(np.cross(b - a, c - a), axis=-1)
        face = rng.choice(len(area), SAMPLES, p=area / area.sum())
        u, v = rng.random((2, SAMPLES, 1))
        u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
        inside = a[face] + u * (b - a)[face] + v * (c - a)[face]
        start, stop = self.triangles.reshape(-1, 3), np.roll(self.triangles, -1, axis=1).reshape(-1, 3)
        edge = np.linalg.norm(stop - start, axis=-1)  # faces that are slivers have points there at least
        owner = np.arange(edge.size).repeat(np.ceil(edge / max(0.02, edge.sum() / SAMPLES)).astype(int))[: 2 * SAMPLES]
        on_edges = start[owner] + rng.random((len(owner), 1)) * (stop - start)[owner]
        points = np.concatenate([self.points, inside, on_edges])
        return points, np.concatenate([self.faces, face, owner // 3])

    @cached_property
    def tree(self) -> cKDTree:
        return cKDTree(self.cloud[0])

    @cached_property
    def _nearest(self) -> Int64[np.ndarray, "s s s"]:
        """For each of the cells of a box about the surface a point of the cloud near to it."""
        cell = _cells(self.cloud[0])
        index = np.full((CELLS,) * 3, -1)
        index[tuple(cell.T)] = np.arange(len(cell))
        place = distance_transform_edt(index < 0, return_distances=False, return_indices=True)
        return index[tuple(place)]

    def near(
        self, points: Float64[np.ndarray, "*batch 3"], k: int = 1, *, exact: float = 0.04
    ) -> Int64[np.ndarray, "..."]:
        """The k nearest points of the cloud; farther than `exact` from it, k times one that is two cells off at most.

        A tree takes long where all of its points are far.
        """
        index = self._nearest[tuple(np.moveaxis(_cells(points), -1, 0))]
        found = index[..., None].repeat(k, axis=-1)
        if exact > 0:
            close = np.linalg.norm(self.cloud[0][index] - points, axis=-1) < exact
            found[close] = self.tree.query(points[close], np.arange(1, k + 1))[1]
        return found

    def around(self, points: Points, radius: float, most: int = 32) -> Int64[np.ndarray, "n k"]:
        """Up to `most` points of the cloud within a radius, the nearest one repeated where there are fewer."""
        found = self.tree.query(points, np.arange(1, most + 1), distance_upper_bound=1.5 * radius)[1]
        return np.where(found < len(self.cloud[0]), found, self.near(points))

    def match(self, points: Points, enough: float = 1e-4) -> Match:
        """The nearest places on the faces of the nearest points of the cloud; of more of them where they are farther
        than `enough`."""
        found = Match(np.full(len(points), np.inf), np.zeros(len(points), np.int64), np.zeros((len(points), 3)))
        for first, last, exact in ((0, 1, 0.0), (0, 4, 0.25), (4, 64, 0.25)):
            rows = np.flatnonzero(found.distance > enough)
            if not len(rows):
                break
            faces = self.cloud[1][self.near(points[rows], last, exact=exact)[:, first:]]
            there = points[rows].repeat(faces.shape[1], axis=0)
            place = closest_point(self.triangles[faces.ravel()], there).reshape(*faces.shape, 3)
            distance = np.linalg.norm(place - points[rows, None], axis=-1)
            best, each = distance.argmin(1), np.arange(len(rows))
            better = distance[each, best] < found.distance[rows] - 1e-9
            for column, value in zip(found, (distance, faces, place), strict=True):
                column[rows[better]] = value[each, best][better]
        return found

    # --- paint --------------------------------------------------------------------------------------------------------

    def paint(self, face: Int64[np.ndarray, " n"], place: Points) -> Points:
        """Colours, 0 to 255, at places on faces."""
        mesh, weights = self.mesh, points_to_barycentric(self.triangles[face], place)
        if mesh.texture is not None:
            assert mesh.uv is not None
            return _texels(mesh.texture, np.einsum("nk,nkc->nc", weights, mesh.uv[face]))
        if mesh.corner_colours is None:
            return np.zeros((len(face), 3))
        return np.einsum("nk,nkc->nc", weights, mesh.corner_colours[face])

    @cached_property
    def cloud_paint(self) -> Float64[np.ndarray, "m 3"]:
        points, faces = self.cloud
        return self.paint(faces, points)


def seen(mesh: Mesh, R: Float64[np.ndarray, "v 3 3"], pixels: int = PIXELS) -> tuple[Points, Int64[np.ndarray, " n"]]:
    """Points of a mesh of radius 1 that the views R show, one for each pixel, and their faces.

    Faces are drawn in a colour each, and the rays meet their planes.
    """
    number = np.arange(len(mesh.faces))
    shades = np.stack([number & 255, number >> 8 & 255, number >> 16], -1).astype(np.uint8)
    vertices, colours = mesh.vertices * FIT_RADIUS, shades[:, None].repeat(3, axis=1)
    bare = Mesh(vertices=vertices, faces=mesh.faces, colours=colours, name=mesh.name)
    settings = RenderSettings(size=pixels, supersample=1, ambient=1.0, diffuse=0.0)
    step = 2 * math.tan(math.radians(settings.fov_deg) / 2) / pixels
    along = (np.arange(pixels) + 0.5 - pixels / 2) * step
    points, faces = [], []
    for view, image in zip(R, render(bare, R, settings, alpha=True), strict=True):
        row, column = np.nonzero(image[..., 3])
        pixel = image[row, column].astype(np.int64)
        face = pixel[:, 0] | pixel[:, 1] << 8 | pixel[:, 2] << 16
        # in object coordinates: the camera's place, and the rays
        eye = view.T @ np.array([0, 0, settings.distance]) / FIT_RADIUS
        ray = np.stack([along[column], -along[row], np.full(len(row), -1.0)], -1) @ view
        a, b, c = mesh.vertices[mesh.faces[face]].swapaxes(0, 1)
        normal = np.cross(b - a, c - a)
        slope = (ray * normal).sum(-1)
        good = np.abs(slope) > 1e-3 * np.linalg.norm(normal, axis=-1) * np.linalg.norm(ray, axis=-1)
        depth = ((a - eye) * normal).sum(-1)[good] / slope[good]
        points.append(eye + depth[:, None] * ray[good])
        faces.append(face[good])
    return np.concatenate(points), np.concatenate(faces)


def _cells(points: Float64[np.ndarray, "*batch 3"]) -> Int64[np.ndarray, "*batch 3"]:
    """Where points lie in a box of half-width 1.02."""
    return ((points + 1.02) * (CELLS / 2.04)).astype(np.int64).clip(0, CELLS - 1)


def _texels(texture: np.ndarray, uv: Float64[np.ndarray, "n 2"]) -> Points:
    """A texture between its texels, repeated; v points up."""
    height, width = texture.shape[:2]
    place = ((1 - uv[:, 1]) * height - 0.5, uv[:, 0] * width - 0.5)
    channels = np.moveaxis(texture, -1, 0).astype(float)
    return np.stack([map_coordinates(channel, place, order=1, mode="grid-wrap") for channel in channels], -1)
