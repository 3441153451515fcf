"""Triangle meshes: what a renderer needs to know about an object."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from jaxtyping import Float, Integer, UInt8

from aquamam.errors import InputError

FIT_RADIUS = 3**0.5  # a cube of side 2, the die, just fits; at distance 8 it fills 93 % of the default view


@dataclass(frozen=True, kw_only=True, eq=False)
class Mesh:
    """A triangle mesh in object coordinates, with at most one texture.

    Stored as float64 vertices, int32 faces, float32 normals and uv, read-only.
    Corners are counter-clockwise seen from outside; faces are drawn from both sides all the same.
    `normals` are those of the corners (smooth shading); without them every face is flat.
    """

    vertices: Float[np.ndarray, "V 3"]
    faces: Integer[np.ndarray, "F 3"]
    normals: Float[np.ndarray, "F 3 3"] | None = None
    uv: Float[np.ndarray, "F 3 2"] | None = None  # of the corners; v points up, outside [0, 1] the texture repeats
    texture: UInt8[np.ndarray, "h w 3"] | None = None
    colours: UInt8[np.ndarray, "V 3"] | UInt8[np.ndarray, "F 3 3"] | None = None  # of vertices or of corners
    name: str = "mesh"

    def __post_init__(self) -> None:
        for field, dtype in (
            ("vertices", np.float64),
            ("faces", np.int32),
            ("normals", np.float32),
            ("uv", np.float32),
            ("texture", np.uint8),
            ("colours", np.uint8),
        ):
            value = getattr(self, field)
            if value is not None:
                value = np.array(value, dtype=dtype, order="C")  # a copy: the mesh does not change with its source
                value.flags.writeable = False
                object.__setattr__(self, field, value)
        _check(self)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the content; the name does not count."""
        digest = hashlib.sha256(b"aquamam mesh 1")
        for field in ("vertices", "faces", "normals", "uv", "texture", "colours"):
            value = getattr(self, field)
            digest.update(f"|{field}:".encode())
            if value is not None:
                digest.update(f"{value.dtype.str}{value.shape}".encode() + value.tobytes())
        return digest.hexdigest()

    @property
    def radius(self) -> float:
        """Distance of the farthest corner from the origin, about which the object turns."""
        return float(np.linalg.norm(self.vertices, axis=1).max())


def _check(mesh: Mesh) -> None:
    """Raise InputError for arrays that are no mesh."""
    V, F = len(mesh.vertices), len(mesh.faces)
    rules = {
        "vertices": mesh.vertices.shape == (V, 3),
        "faces": mesh.faces.shape == (F, 3),
        "normals": mesh.normals is None or mesh.normals.shape == (F, 3, 3),
        "uv": mesh.uv is None or mesh.uv.shape == (F, 3, 2),
        "texture": mesh.texture is None or (mesh.texture.ndim == 3 and mesh.texture.shape[2] == 3),
        "colours": mesh.colours is None or mesh.colours.shape in {(V, 3), (F, 3, 3)},
    }
    for field, holds in rules.items():
        if not holds:
            raise InputError(
                f"{field} of a mesh with V={V} vertices and F={F} faces must be (V, 3), (F, 3), (F, 3, 3), (F, 3, 2), "
                f"(h, w, 3) or (V, 3) as its docstring says, got {getattr(mesh, field).shape} for {mesh.name!r}."
            )
    if F == 0 or V == 0:
        raise InputError(
            f"a mesh needs at least one triangle, {mesh.name!r} has none; point clouds cannot be rendered."
        )
    if not np.isfinite(mesh.vertices).all():
        bad = int((~np.isfinite(mesh.vertices)).any(1).sum())
        raise InputError(
            f"vertices must be finite, {bad} of {V} in {mesh.name!r} are NaN or infinite; repair the mesh."
        )
    if mesh.faces.min() < 0 or mesh.faces.max() >= V:
        raise InputError(f"faces must name vertices 0 to {V - 1}, {mesh.name!r} names {int(mesh.faces.max())}.")
    if (mesh.uv is None) != (mesh.texture is None):
        raise InputError(f"uv and texture come together, {mesh.name!r} has only one of them.")
