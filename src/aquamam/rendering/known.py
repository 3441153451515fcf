"""The object that a model was trained on, to show what a rotation looks like."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from aquamam.errors import InputError
from aquamam.rendering.meshes import Mesh, read_mesh
from aquamam.rendering.render import RenderSettings, quat_to_matrix, render
from aquamam.rendering.solids import NAMES, mesh_of, open_object, solid

MESH_FILE = "mesh.npz"  # beside the checkpoint of a fitted part
AXIS_COLOURS = ("#d5402f", "#2f9e57", "#3a6fd8")  # x, y, z


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownObject:
    """A mesh and the camera that the model knows it from."""

    name: str
    mesh: Mesh
    settings: RenderSettings

    def picture(self, q: Any, size: int = 96) -> UInt8[np.ndarray, "size size 3"]:
        background = self.settings.background if self.settings.background != "random" else (255, 255, 255)
        return render(self.mesh, np.asarray(q), replace(self.settings, size=size, background=background))

    @property
    def axis(self) -> str:
        """The axis of revolution of a round solid, z for all others."""
        if self.name not in NAMES or solid(self.name).mesh is not self.mesh:
            return "z"
        axis = solid(self.name).symmetry.axis
        return "z" if axis is None else "xyz"[int(np.abs(np.asarray(axis)).argmax())]


def known_object(model: Any, name: str | None = None) -> KnownObject | None:
    """The named solid or mesh file, or what a model was trained on: one solid, or the mesh beside its checkpoint."""
    data = (getattr(model, "info", None) or {}).get("data") or {}
    try:
        settings = RenderSettings.from_dict(dict(data.get("settings") or {}))
    except (InputError, TypeError, ValueError):  # written by another version
        settings = RenderSettings()
    if name is not None:
        mesh = mesh_of(open_object(name))
        return KnownObject(name=mesh.name, mesh=mesh, settings=settings)
    objects, source = data.get("objects") or [], getattr(model, "source", None)
    if len(objects) != 1 or not isinstance(objects[0], dict):
        return None
    told, mesh_hash = str(objects[0].get("name")), objects[0].get("mesh")
    if source is not None and (beside := Path(source).parent / MESH_FILE).is_file():
        mesh = read_mesh(beside)
        if mesh.hash == mesh_hash:
            return KnownObject(name=told, mesh=mesh, settings=settings)
    if told in NAMES and mesh_hash in (None, solid(told).mesh.hash):  # not a user's own mesh of that name
        return KnownObject(name=told, mesh=solid(told).mesh, settings=settings)
    return None


def axes_picture(q: Any, size: int = 96, paper: str = "#ffffff", ink: str = "#1b1e24") -> UInt8[np.ndarray, "_ _ 3"]:
    """The object's axes under a rotation (quaternion xyzw), for objects that are not known: x red, y green, z blue."""
    R = quat_to_matrix(np.asarray(q, dtype=np.float64)[None])[0]
    scale = 4  # drawn large and scaled down: Pillow does not smooth lines
    side = size * scale
    image = Image.new("RGB", (side, side), paper)
    pen = ImageDraw.Draw(image)
    for axis in np.argsort(R[2]):  # z is towards the viewer: the farthest axis first
        end = side / 2 * (1 + 0.72 * R[:2, axis] * (1, -1))
        pen.line([(side / 2, side / 2), tuple(end)], fill=AXIS_COLOURS[axis], width=side // 22)
        r = side * (0.05 + 0.02 * R[2, axis])
        pen.ellipse([end[0] - r, end[1] - r, end[0] + r, end[1] + r], fill=AXIS_COLOURS[axis])
        beyond = side / 2 + (end - side / 2) * 1.22
        pen.text(tuple(beyond), "xyz"[axis], fill=ink, anchor="mm", font_size=side // 9)
    return np.asarray(image.resize((size, size), Image.Resampling.LANCZOS))
