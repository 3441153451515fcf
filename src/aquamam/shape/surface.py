"""What can be seen of a mesh: points of its outer surface with their paint, about a centre that does not depend on the triangles.

Any rotation that leaves an object's look unchanged leaves its convex hull unchanged, and so turns about the hull's centroid. Hidden parts,
doubled or inverted faces and the file's own origin do not move that point.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float64, Int64
from scipy.ndimage import distance_transform_edt
from scipy.spatial import ConvexHull, QhullError, cKDTree

from aquamam.errors import InputError
from aquamam.rendering.meshes import FIT_RADIUS, Mesh, crease_normals
from aquamam.rendering.render import RenderSettings, render

VIEWS, PIXELS = (
    60,
    80,
)  # about 150,000 points; what is smaller than a fiftieth of the object in every view may be missed
CELLS = 80  # of the box for rough matches, along each side
SAMPLES = 60_000  # more points, by area, for parts that are seen from few sides


class Body(NamedTuple):
    r"""A convex body of uniform density: its centroid, and the means of $x x^T$ and $|x|^2 x$ about it."""

    centroid: Float64[np.ndarray, "3"]
    moments: Float64[np.ndarray, "3 3"]
    skew: Float64[np.ndarray, "3"]


class Match(NamedTuple):
    """The nearest places of a surface: how far, on which face, and where."""

    distance: Float64[np.ndarray, " n"]
    face: Int64[np.ndarray, " n"]
    place: Float64[np.ndarray, "n 3"]


def hull_body(points: Float64[np.ndarray, "n 3"]) -> Body:
    """Centroid and second moments of the convex hull, as a sum over tetrahedra; of a flat sheet, those of its flat hull."""
    try:
        hull = ConvexHull(points)
    except (QhullError, ValueError):
        return _flat_body(points)
    inside = points[hull.vertices].mean(0)
    corners = points[hull.simplices] - inside
    volume = np.abs(np.linalg.det(corners)) / 6
    total = corners.sum(1)
    centroid = (volume[:, None] * total).sum(0) / (4 * volume.sum())
    second = np.einsum("f,fki,fkj->ij", volume, corners, corners) + np.einsum("f,fi,fj->ij", volume, total, total)
    moments = second / (20 * volume.sum()) - np.outer(centroid, centroid)
    # Keast's five points integrate cubic functions over a tetrahedron exactly
    all_four = np.concatenate([np.zeros((len(corners), 1, 3)), corners], 1) - centroid
    weights = np.concatenate([np.full((1, 4), 1 / 4), np.full((4, 4), 1 / 6) + np.eye(4) / 3])
    x = np.einsum("ck,fki->fci", weights, all_four)
    cubic = np.einsum("f,c,fc,fci->i", volume, np.array([-4 / 5, *[9 / 20] * 4]), (x * x).sum(-1), x)
    return Body(inside + centroid, moments, cubic / volume.sum())


def _flat_body(points: Float64[np.ndarray, "n 3"]) -> Body:
    """The same of points in a plane; InputError for points on a line."""
    middle = points.mean(0)
    _, size, axes = np.linalg.svd(points - middle, full_matrices=False)
    if size[1] < 1e-9 * size[0] or size[0] == 0:
        raise InputError(
            "an object must have an extent in two directions at least, got points on a line; repair the mesh."
        )
    flat = (points - middle) @ axes[:2].T
    ring = flat[ConvexHull(flat).vertices]
    a, b = ring, np.roll(ring, -1, axis=0)
    area = (a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0]) / 2
    centroid = (area[:, None] * (a + b)).sum(0) / (3 * area.sum())
    total = a + b
    second = (
        np.einsum("f,fi,fj->ij", area, a, a)
        + np.einsum("f,fi,fj->ij", area, b, b)
        + np.einsum("f,fi,fj->ij", area, total, total)
    )
    moments = second / (12 * area.sum()) - np.outer(centroid, centroid)
    return Body(middle + centroid @ axes[:2], axes[:2].T @ moments @ axes[:2], np.zeros(3))


def directions(count: int) -> Float64[np.ndarray, "n 3"]:
    """Points spread evenly over the sphere along a golden spiral; no symmetry maps them to one another."""
    z = 1 - (2 * np.arange(count) + 1) / count
    turn = np.pi * (1 + 5**0.5) * np.arange(count)
    return np.stack([np.sqrt(1 - z * z) * np.cos(turn), np.sqrt(1 - z * z) * np.sin(turn), z], -1)


def looking_from(
    towards: Float64[np.ndarray, "n 3"], roll: Float64[np.ndarray, " n"] | None = None
) -> Float64[np.ndarray, "n 3 3"]:
    """Rotations under which the camera sees the object from these directions (in its own frame), turned by `roll` in the picture."""
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

    `points` were seen in one of the views, exactly on their faces; `mesh` has normals by crease angle, whatever the file's.
    """

    mesh: Mesh
    body: Body  # of the hull, at the scale of the mesh
    centre: Float64[np.ndarray, "3"]  # in the coordinates of the mesh that came
    radius: float  # there, from the centre to the farthest corner
    points: Float64[np.ndarray, "n 3"]
    faces: Int64[np.ndarray, " n"]

    @classmethod
    def of(cls, mesh: Mesh, centre: Any = None) -> "Surface":
        """The surface of a mesh in any place and of any size, about the centroid of its hull or another centre."""
        used = np.unique(mesh.faces)
        corners = mesh.vertices[used]
        scale = float(np.abs(corners - corners.mean(0)).max())
        if not scale > 0:
            raise InputError(
                f"an object must have an extent, all corners of {mesh.name!r} are at one place; repair the mesh."
            )
        if scale < 1e-12 * float(np.abs(corners).max()):
            raise InputError(
                f"{mesh.name!r} is {np.abs(corners).max() / scale:.0e} times farther from its origin than it is large, which leaves no "
                "digits for its shape; move it to the origin."
            )
        # about the bounding box first: hulls of far or tiny objects lose digits
        middle = (corners.min(0) + corners.max(0)) / 2
        body = hull_body((corners - middle) / scale)
        origin = body.centroid if centre is None else (np.asarray(centre, float) - middle) / scale
        reach = float(np.linalg.norm((corners - middle) / scale - origin, axis=1).max())
        vertices = np.zeros_like(mesh.vertices)  # of corners that no face uses, too
        vertices[used] = ((corners - middle) / scale - origin) / reach
        placed = replace(mesh, vertices=vertices, normals=crease_normals(vertices, mesh.faces))
        points, faces = seen(placed, looking_from(directions(VIEWS), 1.0 * np.arange(VIEWS)))
        if len(points) < 100:
            raise InputError(
                f"an object must be seen from somewhere, {mesh.name!r} fills {len(points)} of {VIEWS * PIXELS**2:,} pixels; "
                "it may be a thread with stray parts far away."
            )
        return cls(
            mesh=placed,
            body=Body((body.centroid - origin) / reach, body.moments / reach**2, body.skew / reach**3),
            centre=middle + scale * origin,
            radius=scale * reach,
            points=points,
            faces=faces,
        )

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
        """The same surface without its paint."""
        return replace(self, mesh=replace(self.mesh, uv=None, texture=None, colours=None)) if self.painted else self

    # --- nearest places -----------------------------------------------------------------------------------------------

    @cached_property
    def cloud(self) -> tuple[Float64[np.ndarray, "m 3"], Int64[np.ndarray, " m"]]:
        """Points all over the surface and their faces: those that were seen, others by area, and some on edges, for faces that are slivers."""
        rng = np.random.default_rng(0)
        a, b, c = self.triangles.swapaxes(0, 1)
        area = np.linalg.norm(np.cross(b - a, c - a), axis=-1)
        face = rng.choice(len(area), SAMPLES, p=area / area.sum())
        u, v = rng.random((2, SAMPLES, 1))
        u, v = np.where(u + v > 1, 1 - u, u), np.where(u + v > 1, 1 - v, v)
        inside = a[face] + u * (b - a)[face] + v * (c - a)[face]
        edge = np.linalg.norm(self.triangles - np.roll(self.triangles, -1, axis=1), axis=-1)
        each = np.ceil(edge / max(0.02, edge.sum() / SAMPLES)).astype(int).ravel()
        owner = np.arange(each.size).repeat(each)[: 2 * SAMPLES]
        t = rng.random((len(owner), 1))
        start = self.triangles.reshape(-1, 3)[owner]
        stop = np.roll(self.triangles, -1, axis=1).reshape(-1, 3)[owner]
        points = np.concatenate([self.points, inside, start + t * (stop - start)])
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

    def near(self, points: Float64[np.ndarray, "*batch 3"], rough: bool = False) -> Int64[np.ndarray, "*batch"]:
        """Points of the cloud near to these: the nearest ones, but to two cells where they are far from the surface or if `rough`."""
        return (
            self._near(points, 1, 0.04)[..., 0]
            if not rough
            else self._nearest[tuple(np.moveaxis(_cells(points), -1, 0))]
        )

    def _near(self, points: Float64[np.ndarray, "*batch 3"], k: int, far: float) -> Int64[np.ndarray, "*batch k"]:
        """The k nearest points of the cloud, or beyond `far` k times a near one: a tree takes long where all of its points are far."""
        index = self._nearest[tuple(np.moveaxis(_cells(points), -1, 0))]
        close = np.linalg.norm(self.cloud[0][index] - points, axis=-1) < far
        found = index[..., None].repeat(k, axis=-1)
        found[close] = self.tree.query(points[close], np.arange(1, k + 1))[1]
        return found

    def around(self, points: Float64[np.ndarray, "n 3"], radius: float, most: int = 32) -> Int64[np.ndarray, "n k"]:
        """Up to `most` points of the cloud within a radius, the nearest one repeated where there are fewer."""
        found = self.tree.query(points, np.arange(1, most + 1), distance_upper_bound=1.5 * radius)[1]
        nearest = self.near(points)
        return np.where(found < len(self.cloud[0]), found, nearest[:, None])

    @cached_property
    def neighbours(self) -> Int64[np.ndarray, "f 3"]:
        """The face across each edge; the face itself where there is none."""
        _, corner = np.unique(np.round(self.mesh.vertices, 7), axis=0, return_inverse=True)
        ends = corner.reshape(-1)[self.mesh.faces]
        ends = np.sort(np.stack([ends, np.roll(ends, -1, axis=1)], -1), axis=-1).reshape(-1, 2).astype(np.int64)
        key = ends[:, 0] * len(self.mesh.vertices) + ends[:, 1]
        order = np.argsort(key, kind="stable")
        owner, across = order // 3, np.arange(len(key)) // 3
        same = key[order[1:]] == key[order[:-1]]
        across[order[1:][same]] = owner[:-1][same]
        across[order[:-1][same]] = owner[1:][same]
        return across.reshape(-1, 3)

    def match(self, points: Float64[np.ndarray, "n 3"], enough: float = 1e-4) -> Match:
        """The nearest places on the faces of the nearest points of the cloud, and for those farther than `enough` on more of them and
        on the faces around, as long as that brings them nearer."""
        found = Match(np.full(len(points), np.inf), np.zeros(len(points), np.int64), np.zeros((len(points), 3)))

        def try_faces(rows: np.ndarray, faces: np.ndarray) -> np.ndarray:
            """Keep the best of several faces for each of these rows; return the rows that came nearer, but not near enough."""
            there = points[rows].repeat(faces.shape[1], axis=0)
            place = closest_on_triangles(self.triangles[faces.ravel()], there).reshape(*faces.shape, 3)
            distance = np.linalg.norm(place - points[rows, None], axis=-1)
            best = distance.argmin(1)
            each = np.arange(len(rows))
            better = distance[each, best] < found.distance[rows] - 1e-9
            for column, value in zip(found, (distance, faces, place), strict=True):
                column[rows[better]] = value[each, best][better]
            return rows[better & (found.distance[rows] > enough)]

        try_faces(np.arange(len(points)), self.cloud[1][self.near(points, rough=True)][:, None])
        for first, last in ((0, 4), (4, 24)):
            far = np.flatnonzero(found.distance > enough)
            if len(far):
                try_faces(far, self.cloud[1][self._near(points[far], last, 0.25)[:, first:]])
        rows = np.flatnonzero(found.distance > enough)
        for _ in range(12):
            if len(rows):
                rows = try_faces(rows, self.neighbours[found.face[rows]])
        return found

    # --- paint --------------------------------------------------------------------------------------------------------

    def paint(self, face: Int64[np.ndarray, " n"], place: Float64[np.ndarray, "n 3"]) -> Float64[np.ndarray, "n 3"]:
        """Colours, 0 to 255, at places on faces."""
        mesh, weights = self.mesh, barycentric(self.triangles[face], place)
        if mesh.texture is not None:
            assert mesh.uv is not None
            return _texels(mesh.texture, np.einsum("nk,nkc->nc", weights, mesh.uv[face]))
        if mesh.colours is None:
            return np.zeros((len(face), 3))
        corners = mesh.colours[face] if mesh.colours.ndim == 3 else mesh.colours[mesh.faces[face]]
        return np.einsum("nk,nkc->nc", weights, corners)

    @cached_property
    def cloud_paint(self) -> Float64[np.ndarray, "m 3"]:
        points, faces = self.cloud
        return self.paint(faces, points)


def seen(
    mesh: Mesh, R: Float64[np.ndarray, "v 3 3"], pixels: int = PIXELS
) -> tuple[Float64[np.ndarray, "n 3"], Int64[np.ndarray, " n"]]:
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


def _texels(texture: np.ndarray, uv: Float64[np.ndarray, "n 2"]) -> Float64[np.ndarray, "n 3"]:
    """A texture between its texels, repeated; v points up."""
    height, width = texture.shape[:2]
    x, y = uv[:, 0] * width - 0.5, (1 - uv[:, 1]) * height - 0.5
    i, j = np.floor(x).astype(int), np.floor(y).astype(int)
    a, b = (x - i)[:, None], (y - j)[:, None]
    i0, i1, j0, j1 = i % width, (i + 1) % width, j % height, (j + 1) % height
    upper = texture[j0, i0] * (1 - a) + texture[j0, i1] * a
    lower = texture[j1, i0] * (1 - a) + texture[j1, i1] * a
    return upper * (1 - b) + lower * b


# --- triangles --------------------------------------------------------------------------------------------------------


def barycentric(
    triangles: Float64[np.ndarray, "n 3 3"], points: Float64[np.ndarray, "n 3"]
) -> Float64[np.ndarray, "n 3"]:
    """Weights of the corners at points of the triangles' planes."""
    a = triangles[:, 0]
    u, v, w = triangles[:, 1] - a, triangles[:, 2] - a, points - a
    uu, uv, vv, wu, wv = ((p * q).sum(-1) for p, q in ((u, u), (u, v), (v, v), (w, u), (w, v)))
    scale = np.maximum(uu * vv - uv * uv, 1e-300)
    s, t = (vv * wu - uv * wv) / scale, (uu * wv - uv * wu) / scale
    return np.stack([1 - s - t, s, t], -1)


def closest_on_triangles(
    triangles: Float64[np.ndarray, "n 3 3"], points: Float64[np.ndarray, "n 3"]
) -> Float64[np.ndarray, "n 3"]:
    """The point of each triangle nearest to each point: inside it, or on the nearest of its edges."""
    weights = barycentric(triangles, points)
    best = np.einsum("nk,nkc->nc", weights, triangles)
    outside = np.flatnonzero(~(weights >= 0).all(-1))
    if len(outside):
        P, p = triangles[outside], points[outside]
        nearest, place = np.full(len(p), np.inf), np.empty_like(p)
        for k in range(3):
            a, edge = P[:, k], P[:, (k + 1) % 3] - P[:, k]
            along = ((p - a) * edge).sum(-1) / np.maximum((edge * edge).sum(-1), 1e-300)
            here = a + along.clip(0, 1)[:, None] * edge
            square = ((here - p) ** 2).sum(-1)
            closer = square < nearest
            nearest[closer], place[closer] = square[closer], here[closer]
        best[outside] = place
    return best
