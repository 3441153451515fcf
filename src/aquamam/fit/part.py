"""A part to fit a model to: opened, placed as it is rendered, checked; found again, or known again, beside the
checkpoint of its model."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from aquamam.data.photos import PhotoDataset
from aquamam.data.renders import RenderedDataset
from aquamam.errors import InputError
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.rendering.known import known_object
from aquamam.rendering.meshes import FIT_RADIUS, Mesh
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import mesh_of, open_object
from aquamam.shape.surface import directions, looking_from
from aquamam.shape.symmetries import Symmetries

FEWEST_PIXELS = 12  # that a part must fill on average


def fresh_renders(model: Any, *, seed: int, split: str, length: int) -> RenderedDataset | None:
    """New renders drawn like those that the model was calibrated on; None for a model that no `aquamam fit` made."""
    data, known = model.info.get("data", {}), known_object(model)
    if known is None or "symmetries" not in data:
        return None
    groups = {name: group and SymmetryGroup.from_dict(group) for name, group in data["symmetries"].items()}
    options: dict[str, Any] = {"symmetries": groups, "seed": seed, "split": split, "length": length, "lookalikes": True}
    mesh, settings = replace(known.mesh, name=known.name), known.settings
    if "photographs" not in data:
        return RenderedDataset(mesh, settings, **options)
    folder = Path(data.get("backgrounds", "none"))
    options |= {"backgrounds": folder if folder.is_dir() else None}
    options["mesh_error"] = model.info.get("part", {}).get("mesh_error", 0.0)
    return PhotoDataset(mesh, settings.shape[0], **options)


def open_part(source: str, *, untextured: bool = False) -> Mesh:
    """A solid's mesh, or a file's in its own coordinates."""
    return mesh_of(open_object(source, scale=1.0, center=False, untextured=untextured))


def placed(mesh: Mesh, found: Symmetries) -> tuple[Mesh, list[float], float]:
    """The mesh as it is rendered, (vertices - centre) * scale: about the centre of its symmetries, or of its box if it
    has none."""
    corners = mesh.vertices[np.unique(mesh.faces)]
    centre = np.array(found.centre)
    if found.group is None or found.group.order == 1:
        centre = (corners.min(0) + corners.max(0)) / 2
    reach = float(np.linalg.norm(corners - centre, axis=1).max())
    if np.linalg.norm(centre) < 1e-7 * reach and abs(reach / FIT_RADIUS - 1) < 1e-7:
        return mesh, [0.0, 0.0, 0.0], 1.0  # a solid stays what it is
    scale = FIT_RADIUS / reach
    return replace(mesh, vertices=(mesh.vertices - centre) * scale), centre.tolist(), scale


def check_part(mesh: Mesh, found: Symmetries, size: int) -> None:
    """Raise InputError for a part that no picture tells anything about."""
    if found.group is None:
        raise InputError(f"{mesh.name} looks the same under every rotation, so there is nothing to learn about it.")
    seen = render(mesh, looking_from(directions(48)), RenderSettings(size=size), alpha=True)[..., 3]
    filled = float((seen / 255).sum((1, 2)).mean())
    if filled < FEWEST_PIXELS:
        raise InputError(
            f"{mesh.name} fills {filled:.1f} of the {size} x {size} pixels on average, too few to see "
            "how it is rotated; remove what lies far from it in the file, or try a larger --size."
        )
