"""A mesh as the renderers' loops read it."""

from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Int64, UInt8

from aquamam.rendering.meshes import Mesh


class Scene(NamedTuple):
    """A mesh as the loops read it, in one fixed layout and type; an absent attribute has length 0."""

    vertices: np.ndarray  # (V, 3) float64
    faces: np.ndarray  # (F, 3) int32
    normals: np.ndarray  # (F or 0, 3, 3) float32, of the corners, in object coordinates
    paint: np.ndarray  # (F or 0, 3, 3) float32, of the corners: colours, or places (u, v, 0) on the texture, v upwards
    texels: np.ndarray  # (N,) int64, red + green << 20 + blue << 40, the levels of the texture one after another
    levels: np.ndarray  # (L, 3) int64: offset, height, width


_SCENES: WeakKeyDictionary[Mesh, Scene] = WeakKeyDictionary()  # texture levels are worth keeping between calls


def scene_of(mesh: Mesh) -> Scene:
    if mesh not in _SCENES:
        absent = np.zeros((0, 3, 3))
        texels, levels = (np.zeros(0), np.zeros((0, 3))) if mesh.texture is None else mipmaps(mesh.texture)
        colours = absent if mesh.colours is None else mesh.corner_colours
        paint = colours if mesh.uv is None else np.pad(mesh.uv, ((0, 0), (0, 0), (0, 1)))
        _SCENES[mesh] = Scene(
            np.array(mesh.vertices, np.float64),
            np.array(mesh.faces, np.int32),
            np.array(absent if mesh.normals is None else mesh.normals, np.float32),
            np.array(paint, np.float32),
            np.array(texels, np.int64),
            np.array(levels, np.int64),
        )
    return _SCENES[mesh]


def mipmaps(texture: UInt8[np.ndarray, "h w 3"]) -> tuple[Int64[np.ndarray, "n"], np.ndarray]:
    """A texture and its halvings down to one texel, flat one after another; rows (offset, height, width)."""
    level, pieces, rows, offset = texture, [], [], 0
    while True:
        h, w = level.shape[:2]
        pieces.append((level.astype(np.int64) @ np.array([1, 1 << 20, 1 << 40])).ravel())
        rows.append((offset, h, w))
        offset += h * w
        if h == w == 1:
            return np.concatenate(pieces), np.array(rows)
        even = np.pad(level, ((0, h % 2 if h > 1 else 1), (0, w % 2 if w > 1 else 1), (0, 0)), mode="edge")
        total = even.reshape(even.shape[0] // 2, 2, even.shape[1] // 2, 2, 3).astype(np.uint16).sum((1, 3))
        level = ((total + 2) // 4).astype(np.uint8)
