"""Fewer triangles where a mesh has more than small pictures show."""

from dataclasses import replace

import numpy as np

from aquamam.rendering.meshes import Mesh, crease_normals

MOST_FACES = 8_000  # of a mesh that is drawn at 64 pixels: more are smaller than a pixel


def simplified(mesh: Mesh, most: int = MOST_FACES) -> Mesh:
    """The mesh with the vertices of a grid's cell made one, the grid as fine as will do; textured meshes stay."""
    if len(mesh.faces) <= most or mesh.uv is not None:
        return mesh
    extent = np.ptp(mesh.vertices, axis=0).max()
    cells = 160
    while True:
        smaller = _clustered(mesh, extent / cells)
        if len(smaller.faces) <= most or cells < 8:
            return smaller
        cells = int(cells * 0.85)


def _clustered(mesh: Mesh, side: float) -> Mesh:
    place = np.floor((mesh.vertices - mesh.vertices.min(0)) / side).astype(np.int64)
    _, which, counts = np.unique(place, axis=0, return_inverse=True, return_counts=True)
    which = which.reshape(-1)

    def mean(values: np.ndarray) -> np.ndarray:
        total = np.zeros((len(counts), values.shape[1]))
        np.add.at(total, which, values)
        return total / counts[:, None]

    faces = which[mesh.faces]
    whole = (faces[:, 0] != faces[:, 1]) & (faces[:, 1] != faces[:, 2]) & (faces[:, 2] != faces[:, 0])
    _, first = np.unique(np.sort(faces, axis=1), axis=0, return_index=True)
    kept = np.intersect1d(np.flatnonzero(whole), first)
    vertices, colours = mean(mesh.vertices), mesh.colours
    if colours is not None:
        colours = mean(colours).round().astype(np.uint8) if colours.ndim == 2 else colours[kept]
    faces = faces[kept].astype(np.int32)
    return replace(mesh, vertices=vertices, faces=faces, colours=colours, normals=crease_normals(vertices, faces, 50))
