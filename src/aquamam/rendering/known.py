"""The object that a model was trained on, to show what a rotation looks like."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from aquamam.errors import InputError
from aquamam.rendering.meshes import Mesh, load_mesh
from aquamam.fit.part import part_mesh
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import NAMES, solid

AXIS_COLOURS = ("#d5402f", "#2f9e57", "#3a6fd8")  # x, y, z


@dataclass(frozen=True, kw_only=True, eq=False)
class KnownObject:
    """A mesh and the camera that the model knows it from."""

    name: str
    mesh: Mesh
    settings: RenderSettings

    def picture(self, q: Any, size: int = 96) -> UInt8[np.ndarray, "size size 3"]:
        """The object under a rotation (quaternion xyzw)."""
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
    """The object of a model's training data, if there was one and it is one of the package's solids or lies beside the checkpoint; or the
    named solid or mesh file."""
    data = (getattr(model, "info", None) or {}).get("data") or {}
    settings = _settings(data.get("settings"))
    if name is not None:
        if name in NAMES:
            return KnownObject(name=name, mesh=solid(name).mesh, settings=settings)
        if not Path(name).is_file():
            raise InputError(f"an object is a mesh file or one of {', '.join(NAMES)}, got {name!r}.")
        return KnownObject(name=Path(name).stem, mesh=load_mesh(name), settings=settings)
    objects = data.get("objects") or []
    if (mesh := part_mesh(model)) is not None:
        return KnownObject(name=str(objects[0].get("name")), mesh=mesh, settings=settings)
    if len(objects) != 1 or not isinstance(objects[0], dict) or objects[0].get("name") not in NAMES:
        return None
    known = solid(objects[0]["name"])
    if objects[0].get("mesh") not in (None, known.mesh.hash):  # a user's own mesh of that name
        return None
    return KnownObject(name=known.name, mesh=known.mesh, settings=settings)


def _settings(values: Any) -> RenderSettings:
    try:
        return RenderSettings.from_dict(dict(values)) if values else RenderSettings()
    except (InputError, TypeError, ValueError):  # written by another version
        return RenderSettings()


def axes_picture(
    q: Any, size: int = 96, paper: str = "#ffffff", ink: str = "#1b1e24"
) -> UInt8[np.ndarray, "size size 3"]:
    """The object's axes under a rotation (quaternion xyzw), for objects that are not known: x red, y green, z blue."""
    x, y, z, w = np.asarray(q, dtype=np.float64)
    R = np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )
    scale = 4  # drawn large and scaled down: Pillow does not smooth lines
    side = size * scale
    image = Image.new("RGB", (side, side), paper)
    pen = ImageDraw.Draw(image)
    for axis in np.argsort(R[2]):  # z is towards the viewer: the farthest axis first
        end = side / 2 * (1 + 0.72 * R[:2, axis] * (1, -1))
        pen.line([(side / 2, side / 2), tuple(end)], fill=AXIS_COLOURS[axis], width=side // 22)
        r = side * (0.05 + 0.02 * R[2, axis])
        pen.ellipse([end[0] - r, end[1] - r, end[0] + r, end[1] + r], fill=AXIS_COLOURS[axis])
        pen.text(
            tuple(side / 2 + (end - side / 2) * 1.22), "xyz"[axis], fill=ink, anchor="mm", font_size=side // 9
        )  # fmt: skip
    return np.asarray(image.resize((size, size), Image.Resampling.LANCZOS))
