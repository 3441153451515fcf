"""Meshes whose symmetries are known, and the same objects in other places and other triangles."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import trimesh
from scipy.spatial.transform import Rotation

from aquamam.rendering.meshes import Mesh


def written(mesh: Mesh, path: Path) -> Path:
    """The mesh's triangles in a file, without paint."""
    trimesh.Trimesh(mesh.vertices, mesh.faces, process=False).export(path)
    return path


def moved(mesh: Mesh, turn: Rotation, shift=(0.0, 0.0, 0.0), scale: float = 1.0) -> Mesh:
    """The mesh turned, then scaled and shifted; its normals are left out."""
    return replace(mesh, vertices=scale * mesh.vertices @ turn.as_matrix().T + shift, normals=None)


def remeshed(mesh: Mesh, rng: np.random.Generator) -> Mesh:
    """The same surface and paint in other triangles: some cut in four, the rest in three at a random point; shuffled,
    some turned inside out."""
    corners = mesh.vertices[mesh.faces]
    layers = [corners]
    if mesh.uv is not None:
        layers.append(mesh.uv.astype(float))
    if mesh.colours is not None:
        layers.append((mesh.colours if mesh.colours.ndim == 3 else mesh.colours[mesh.faces]).astype(float))
    pick = rng.random(len(corners)) < 0.3
    weights = rng.dirichlet((2, 2, 2), len(corners))
    order = rng.permutation(4 * pick.sum() + 3 * (~pick).sum())
    new = []
    for layer in layers:
        a, b, c = layer[pick].swapaxes(0, 1)
        ab, bc, ca = (a + b) / 2, (b + c) / 2, (c + a) / 2
        four = [np.stack(t, 1) for t in ((a, ab, ca), (ab, b, bc), (ca, bc, c), (ab, bc, ca))]
        a, b, c = layer[~pick].swapaxes(0, 1)
        d = np.einsum("fk,fkx->fx", weights[~pick], layer[~pick])
        three = [np.stack(t, 1) for t in ((a, b, d), (b, c, d), (c, a, d))]
        new.append(np.concatenate([*four, *three])[order])
    flip = rng.random(len(order)) < 0.2
    new = [np.where(flip[:, None, None], layer[:, ::-1], layer) for layer in new]
    vertices, faces = np.unique(np.round(new[0].reshape(-1, 3), 9), axis=0, return_inverse=True)
    paint = {}
    if mesh.uv is not None:
        paint = {"uv": new[1], "texture": mesh.texture}
    elif mesh.colours is not None:
        paint = {"colours": np.rint(new[1]).astype(np.uint8)}
    return Mesh(vertices=vertices, faces=faces.reshape(-1, 3), name=mesh.name, **paint)


def joined(*meshes: Mesh) -> Mesh:
    """Several bodies as one mesh, without paint."""
    starts = np.cumsum([0, *(len(m.vertices) for m in meshes)])
    faces = np.concatenate([m.faces + s for m, s in zip(meshes, starts)])
    return Mesh(vertices=np.concatenate([m.vertices for m in meshes]), faces=faces, name=meshes[0].name)


def box(x: float, y: float, z: float, at=(0.0, 0.0, 0.0)) -> Mesh:
    """A box with these sides."""
    corners = np.array([(i, j, k) for i in (0, 1) for j in (0, 1) for k in (0, 1)], float) - 0.5
    quads = np.array([(0, 1, 3, 2), (4, 6, 7, 5), (0, 4, 5, 1), (2, 3, 7, 6), (0, 2, 6, 4), (1, 5, 7, 3)])
    faces = np.concatenate([quads[:, [0, 1, 2]], quads[:, [0, 2, 3]]])
    return Mesh(vertices=corners * (x, y, z) + at, faces=faces, name="box")


def prism(outline: np.ndarray, height: float, twist: float = 0.0) -> Mesh:
    """A star-shaped outline (n, 2) raised from z = -height / 2 to height / 2, the top turned by `twist` radians."""
    n = len(outline)
    turn = Rotation.from_rotvec([0, 0, twist])
    bottom = np.column_stack([outline, np.full(n, -height / 2)])
    top = turn.apply(np.column_stack([outline, np.full(n, height / 2)]))
    i = np.arange(n)
    j = (i + 1) % n
    side = np.concatenate([np.stack([i, j, j + n], -1), np.stack([i, j + n, i + n], -1)])
    caps = np.concatenate(
        [np.stack([j, i, np.full(n, 2 * n)], -1), np.stack([i + n, j + n, np.full(n, 2 * n + 1)], -1)]
    )
    middle = np.array([(0, 0, -height / 2), (0, 0, height / 2)])
    return Mesh(vertices=np.concatenate([bottom, top, middle]), faces=np.concatenate([side, caps]), name="prism")


def polygon(n: int, radius: float = 1.0) -> np.ndarray:
    """The corners of a regular polygon."""
    angle = 2 * np.pi * np.arange(n) / n
    return radius * np.stack([np.cos(angle), np.sin(angle)], -1)


def tube(centres: np.ndarray, radius: float, around: int = 24, closed: bool = False) -> Mesh:
    """A tube about a curve (n, 3)."""
    along = np.roll(centres, -1, 0) - np.roll(centres, 1, 0) if closed else np.gradient(centres, axis=0)
    along /= np.linalg.norm(along, axis=-1, keepdims=True)
    side = np.cross(along, [0.0, 0, 1])
    side /= np.linalg.norm(side, axis=-1, keepdims=True)
    up = np.cross(side, along)
    angle = 2 * np.pi * np.arange(around) / around
    ring = np.cos(angle)[:, None] * side[:, None] + np.sin(angle)[:, None] * up[:, None]
    vertices = (centres[:, None] + radius * ring).reshape(-1, 3)
    n = len(centres)
    i, k = np.meshgrid(np.arange(n if closed else n - 1), np.arange(around), indexing="ij")
    a, b = i * around + k, i * around + (k + 1) % around
    c, d = (i + 1) % n * around + k, (i + 1) % n * around + (k + 1) % around
    faces = np.concatenate([np.stack([a, b, d], -1).reshape(-1, 3), np.stack([a, d, c], -1).reshape(-1, 3)])
    return Mesh(vertices=vertices, faces=faces, name="tube")


def torus(around: int = 120) -> Mesh:
    return tube(np.column_stack([polygon(around), np.zeros(around)]), 0.35, 48, closed=True)


def spring(turns: float = 2.5) -> Mesh:
    """A helix: only the half turn about one axis across it is left."""
    t = np.linspace(-1, 1, 160)
    return tube(np.stack([np.cos(np.pi * turns * t), np.sin(np.pi * turns * t), t], -1), 0.15)


def lifted(mesh: Mesh, z: float) -> Mesh:
    return moved(mesh, Rotation.identity(), (0, 0, z))


def mug() -> Mesh:
    """A solid cylinder about z and a handle on its x side, up to which the half turn about x remains."""
    t = np.linspace(0, np.pi, 40)
    handle = tube(np.stack([1 + 0.6 * np.sin(t), 0 * t, 0.6 * np.cos(t)], -1), 0.12)
    return joined(prism(polygon(100), 2.0), handle)
