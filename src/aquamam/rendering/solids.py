"""The paper's die and cylinder and the eight solids of SYMSOL, each with its exact symmetry group.

All of them are our own geometry and paint. Marks follow SYMSOL: tetX has one red face, cylO a dot off the middle of
its side, sphereX a cross and a dot. Round solids have so many facets, and smooth normals, that they look round.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float, UInt8
from scipy.spatial import ConvexHull

from aquamam.errors import require
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.rendering.meshes import FIT_RADIUS, GREY, Mesh, load_mesh

Colour = tuple[int, int, int]

# At most 182, so that the default light, which brightens up to 1.4 times, never saturates.
WHITE, RED, BLACK = (181, 180, 176), (150, 24, 32), (22, 22, 24)

# Each face's normal, and the directions of right and up on it. The five faces the camera at identity; opposite faces
# add to seven; 1, 2, 3 run counter-clockwise about their common corner seen from outside (a right-handed, Western die).
DIE_FACES = {
    1: ((0, 1, 0), (1, 0, 0), (0, 0, -1)),
    2: ((0, 0, -1), (-1, 0, 0), (0, 1, 0)),
    3: ((-1, 0, 0), (0, 0, 1), (0, 1, 0)),
    4: ((1, 0, 0), (0, 0, -1), (0, 1, 0)),
    5: ((0, 0, 1), (1, 0, 0), (0, 1, 0)),
    6: ((0, -1, 0), (1, 0, 0), (0, 0, 1)),
}
# Pips at (right, up) in units of their spacing.
PIPS = {
    1: [(0, 0)],
    2: [(-1, -1), (1, 1)],
    3: [(-1, -1), (0, 0), (1, 1)],
    4: [(-1, -1), (-1, 1), (1, -1), (1, 1)],
    5: [(-1, -1), (-1, 1), (0, 0), (1, -1), (1, 1)],
    6: [(-1, -1), (-1, 0), (-1, 1), (1, -1), (1, 0), (1, 1)],
}
TET_RED = (-1, 1, 1)  # normal of tetX's red face
PHI = (1 + 5**0.5) / 2
_BARE = {"die": "cube", "tetX": "tet", "cylO": "cyl", "sphereX": "sphere"}  # painted solids, and what they are below
_CORNERS = {
    "tet": [(1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1)],
    "cube": [(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)],
    "icosa": [np.roll((0, a, b * PHI), k) for k in range(3) for a in (-1, 1) for b in (-1, 1)],
}
UPRIGHT = np.array([(0, -1, 0), (0, 0, 1), (-1, 0, 0)])  # a rotation: z becomes y, and azimuth 180 faces the camera
ROUND = 360  # facets about an axis: turns by whole degrees map facets to facets


@dataclass(frozen=True, kw_only=True, eq=False)
class Solid:
    """A mesh that knows which rotations leave it unchanged."""

    mesh: Mesh
    name: str
    shape: SymmetryGroup | None  # the group of the bare shape, without its paint; None for a sphere's, all rotations
    symmetry: SymmetryGroup  # the rotations g for which R g and R give the same image, whatever R


def open_object(name: str, **options: Any) -> Solid | Mesh:
    """A solid by its name, or the mesh of a file; `options` are those of `load_mesh`."""
    if name in _MAKERS:
        return solid(name)
    require(Path(name).exists(), f"{name!r} is neither a file nor a solid; the solids are {', '.join(NAMES)}.")
    return load_mesh(name, **options)


def mesh_of(thing: Solid | Mesh) -> Mesh:
    return thing.mesh if isinstance(thing, Solid) else thing


@cache
def solid(name: str) -> Solid:
    """One of the solids in `NAMES`; axes of revolution are z, but the cylinder's y."""
    require(name in _MAKERS, f"solids are {', '.join(NAMES)}, got {name!r}; for your own object use load_mesh.")
    bare = _BARE.get(name, name)
    shape = _GROUPS[bare]() if bare in _GROUPS else None
    symmetry = SymmetryGroup.trivial() if name in _BARE or shape is None else shape
    if name == "tetX":
        symmetry = SymmetryGroup.cyclic(3, TET_RED)
    return Solid(mesh=_MAKERS[name](name), name=name, shape=shape, symmetry=symmetry)


def _paint(share: Float[np.ndarray, "h w"], ground: np.ndarray | Colour, colour: Colour) -> UInt8[np.ndarray, "h w 3"]:
    """A share of a colour laid over the ground."""
    ground = np.asarray(ground, float)
    return np.rint(ground + share.clip(0, 1)[..., None] * (np.array(colour) - ground)).astype(np.uint8)


def _die(name: str, tile: int = 128, spacing: float = 0.5, radius: float = 0.2) -> Mesh:
    """A cube of side 2; its texture holds the faces 1, 2, 3 above 4, 5, 6."""
    grid = (np.arange(tile) + 0.5) / tile * 2 - 1
    right, up = np.meshgrid(grid, -grid)
    square = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    texture = np.empty((2 * tile, 3 * tile, 3), np.uint8)
    vertices, uv = [], []
    for number, (normal, x, y) in DIE_FACES.items():
        row, column = divmod(number - 1, 3)
        pips = np.array(PIPS[number]) * spacing
        distance = np.hypot(right[..., None] - pips[:, 0], up[..., None] - pips[:, 1]).min(-1)
        tiles = texture[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile]
        tiles[:] = _paint((radius - distance) * tile / 2 + 0.5, RED, WHITE)
        vertices.append(np.array(normal) + square @ np.array([x, y]))
        uv.append((np.array([column, 1 - row]) + (square + 1) / 2) / (3, 2))
    faces = np.array([(4 * k + a, 4 * k + b, 4 * k + c) for k in range(6) for a, b, c in ((0, 1, 2), (0, 2, 3))])
    corners = np.concatenate(uv)[faces]
    return Mesh(vertices=np.concatenate(vertices).astype(float), faces=faces, uv=corners, texture=texture, name=name)


def _polyhedron(name: str) -> Mesh:
    """The convex hull of corners about the origin, faces looking outwards."""
    points = np.array(_CORNERS[_BARE.get(name, name)], float)
    points *= FIT_RADIUS / np.linalg.norm(points[0])
    faces = ConvexHull(points).simplices
    a, b, c = points[faces].swapaxes(0, 1)
    inwards = (np.cross(b - a, c - a) * a).sum(-1) < 0
    faces = np.where(inwards[:, None], faces[:, ::-1], faces)
    red = (points[faces].mean(1) @ np.array(TET_RED) > 0.5)[:, None, None]
    colours = np.where(red, RED, GREY).repeat(3, axis=1).astype(np.uint8) if name == "tetX" else None
    return Mesh(vertices=points, faces=faces, colours=colours, name=name)


class Ring(NamedTuple):
    """A circle about z, the normal of the surface there (outwards, upwards), and its height on the texture."""

    radius: float
    z: float
    normal: tuple[float, float]
    v: float = 0.0


def _disc(n: int, *, clockwise: bool) -> np.ndarray:
    """Triangles (n - 2, 3) of a regular polygon, cut off corner by corner: large ones inside, which draw fast."""
    corners, triangles = list(range(n)), []
    while len(corners) > 2:
        triangles += [(corners[i - 1], corners[i], (*corners, corners[0])[i + 1]) for i in range(1, len(corners), 2)]
        corners = corners[::2]
    return np.array(triangles)[:, ::-1] if clockwise else np.array(triangles)


def _lathe(name: str, bands: list[tuple[Ring, Ring]], texture: np.ndarray | None = None, facets: int = ROUND) -> Mesh:
    """Bands between an upper and a lower circle; the texture's u runs once around from the x axis."""
    turn = np.arange(facets + 1) * (2 * np.pi / facets)
    around = np.stack([np.cos(turn), np.sin(turn), np.ones(facets + 1)], -1)
    around[-1] = around[0]  # closed to the last bit
    rows, columns = np.array([0, 1, 1, 0]), np.arange(facets)[:, None] + np.array([0, 0, 1, 1])
    points, normals, uv = [], [], []
    for band in bands:
        P = np.stack([around * (ring.radius, ring.radius, ring.z) for ring in band])
        N = np.stack([around * (ring.normal[0], *ring.normal) for ring in band])
        T = np.stack([np.stack([turn / (2 * np.pi), np.full(facets + 1, ring.v)], -1) for ring in band])
        if band[0].z == band[1].z:
            picks: list = [(int(band[1].radius > 0), _disc(facets, clockwise=band[0].normal[1] < 0))]
        else:  # a point on the axis leaves one triangle a facet
            triangles = [t for t, base in (([0, 1, 2], band[1]), ([0, 2, 3], band[0])) if base.radius > 0]
            picks = [(rows[t], columns[:, t]) for t in triangles]
        for pick in picks:
            points.append(P[pick])
            normals.append(N[pick])
            uv.append(T[pick])
    vertices, faces = np.unique(np.concatenate(points).reshape(-1, 3), axis=0, return_inverse=True)
    return Mesh(
        vertices=vertices,
        faces=faces.reshape(-1, 3),
        normals=np.concatenate(normals) / np.linalg.norm(np.concatenate(normals), axis=-1, keepdims=True),
        uv=None if texture is None else np.concatenate(uv),
        texture=texture,
        name=name,
    )


def _stand(mesh: Mesh) -> Mesh:
    """Turn the lathe's axis up, and away from the camera the seam of its texture."""
    assert mesh.normals is not None
    return replace(mesh, vertices=mesh.vertices @ UPRIGHT.T, normals=mesh.normals @ UPRIGHT.T)


def _cylinder(name: str, radius: float, half: float, texture: UInt8[np.ndarray, "h w 3"] | None = None) -> Mesh:
    """Its side is textured from v = 0 to 1, its caps with the texture's edges."""
    side = (Ring(radius, half, (1, 0), 1.0), Ring(radius, -half, (1, 0), 0.0))
    top = (Ring(0, half, (0, 1), 1.0), Ring(radius, half, (0, 1), 1.0))
    bottom = (Ring(radius, -half, (0, -1), 0.0), Ring(0, -half, (0, -1), 0.0))
    return _lathe(name, [top, side, bottom], texture)


def _symsol_cylinder(name: str) -> Mesh:
    radius, half = 0.5 * FIT_RADIUS, 0.75**0.5 * FIT_RADIUS
    if name == "cyl":
        return _cylinder(name, radius, half)
    height, width = 192, 384
    along = radius * 2 * np.pi * ((np.arange(width) + 0.5) / width - 0.5)[None, :]  # the dot stands at azimuth 180
    up = half * (1 - 2 * (np.arange(height) + 0.5) / height)[:, None]
    share = (0.36 - np.hypot(along, up - 0.5 * half)) * width / (2 * np.pi * radius) + 0.5
    return _cylinder(name, radius, half, _paint(share, GREY, BLACK))


def _cone(name: str) -> Mesh:
    """As high as its base is wide; the middle of its height is the origin."""
    half = FIT_RADIUS / 2**0.5
    slope = (2.0, 1.0)  # of a side that falls 2 over 1
    side = (Ring(0, half, slope), Ring(half, -half, slope))
    return _lathe(name, [side, (Ring(half, -half, (0, -1)), Ring(0, -half, (0, -1)))])


def _sphere(name: str, radius: float = 1.55, facets: int = 128) -> Mesh:
    """A cross at +z and a red dot beside it; the seam of the texture and its poles, at +y and -y, are plain."""
    height, width = 256, 512
    azimuth = 2 * np.pi * (np.arange(width) + 0.5)[None, :] / width
    polar = np.pi * (np.arange(height) + 0.5)[:, None] / height
    lathe = np.stack([np.sin(polar) * np.cos(azimuth), np.sin(polar) * np.sin(azimuth), np.cos(polar) + 0 * azimuth])
    x, y, z = np.tensordot(UPRIGHT, lathe, 1)
    texels = height / np.pi  # a radian
    a, b = np.abs(x + y) / 2**0.5, np.abs(x - y) / 2**0.5
    arms = np.minimum(0.12 - np.minimum(a, b), 0.62 - np.maximum(a, b))
    cross = np.where(z > 0, arms, -1.0) * texels + 0.5
    dot = np.array([0.78, 0.0, (1 - 0.78**2) ** 0.5])
    angle = np.arccos((x * dot[0] + y * dot[1] + z * dot[2]).clip(-1, 1))
    texture = _paint((0.17 - angle) * texels + 0.5, _paint(cross, GREY, BLACK), RED)
    at = np.linspace(0, np.pi, facets // 2 + 1)
    ring = zip(np.sin(at) * (at > 0) * (at < np.pi), np.cos(at))
    rings = [Ring(radius * r, radius * h, (r, h), 1 - i / (len(at) - 1)) for i, (r, h) in enumerate(ring)]
    return _stand(_lathe(name, list(pairwise(rings)), texture, facets))


_GROUPS: dict[str, Callable[[], SymmetryGroup]] = {
    "cylinder": lambda: SymmetryGroup.revolution((0.0, 1.0, 0.0), flip=True),
    "tet": SymmetryGroup.tetrahedral,
    "cube": SymmetryGroup.octahedral,
    "icosa": SymmetryGroup.icosahedral,
    "cone": SymmetryGroup.revolution,
    "cyl": lambda: SymmetryGroup.revolution(flip=True),
}
_MAKERS: dict[str, Callable[[str], Mesh]] = {
    "die": _die,
    "cylinder": lambda name: _stand(_cylinder(name, FIT_RADIUS / 2**0.5, FIT_RADIUS / 2**0.5)),  # as high as wide
    "tet": _polyhedron,
    "cube": _polyhedron,
    "icosa": _polyhedron,
    "cone": _cone,
    "cyl": _symsol_cylinder,
    "tetX": _polyhedron,
    "cylO": _symsol_cylinder,
    "sphereX": _sphere,
}
NAMES = tuple(_MAKERS)
