"""The page of a posterior: the ball of rotations, the object in any of them, the modes; to explore in a browser."""

import base64
import os
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from aquamam import __version__
from aquamam.files import write_text
from aquamam.geometry.rotations import LOG_UNIFORM
from aquamam.pages.page import asset, fill, image_uri, page
from aquamam.plotting.cloud import Cloud
from aquamam.plotting.style import THEMES, density_scale
from aquamam.rendering.known import KnownObject

LARGEST_IMAGE = 512  # pixels: the page shows the input no larger
MOST_FACES = 200_000  # of an object in the page; a larger one is shown as axes
MEANING = "log densities with respect to volume π², quaternions xyzw, x right, y up, z towards the viewer."
SCALE: dict[str, Any] = {"uniform": LOG_UNIFORM, "colours": THEMES}  # what colours mean, for the scripts


def page_data(
    cloud: Cloud, *, image: Image.Image, known: KnownObject | None = None, title: str = "Rotations that fit this image"
) -> dict[str, Any]:
    """All that the page shows, as plain JSON values."""
    scale = density_scale(cloud.log_density)
    return {
        "title": title,
        "footer": f"aquamam {__version__}; {MEANING}",
        "image": image_uri(image, largest=LARGEST_IMAGE),
        "answer": cloud.to_dict(),
        "range": [scale.vmin, scale.vmax],
        "object": None if known is None else object_data(known),
        **SCALE,
    }


def object_data(known: KnownObject) -> dict[str, Any] | None:
    """A mesh and its camera for object.js, or None if it is too large; arrays are little-endian, in base64."""
    mesh, settings = known.mesh, known.settings
    if len(mesh.faces) > MOST_FACES:
        return None
    colours = mesh.colours if mesh.colours is None or mesh.colours.ndim == 3 else mesh.colours[mesh.faces]
    background = settings.background if settings.background != "random" else (255, 255, 255)
    return {
        "name": known.name,
        "vertices": _base64(mesh.vertices, "<f4"),
        "faces": _base64(mesh.faces, "<u4"),
        "normals": _base64(mesh.normals, "<f4"),
        "uv": _base64(mesh.uv, "<f4"),
        "colours": _base64(colours, "|u1"),
        "texture": None if mesh.texture is None else image_uri(mesh.texture),
        "settings": {**settings.to_dict(), "background": list(background)},
    }


def _base64(array: np.ndarray | None, kind: str) -> str | None:
    return None if array is None else base64.b64encode(np.ascontiguousarray(array).astype(kind).tobytes()).decode()


def posterior_page(data: dict[str, Any]) -> str:
    """The HTML of what `page_data` gave."""
    explorer = fill(asset("explorer.html"), picture='<img id="input" alt="The input image">', controls="")
    body = fill(asset("posterior.html"), title=escape(data["title"]), explorer=explorer)
    scripts = ("three.min.js", "ball.js", "object.js", "explorer.js", "posterior.js")
    return page(data["title"], body, styles=("explorer.css",), scripts=scripts, data=data)


def write_page(path: str | os.PathLike[str], data: dict[str, Any]) -> Path:
    """Write the page of what `page_data` gave."""
    return write_text(path, posterior_page(data))
