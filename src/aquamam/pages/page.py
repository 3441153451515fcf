"""The page: a posterior to explore in the browser, one self-contained HTML file that needs no network."""

import base64
import io
import json
import math
import os
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from aquamam import __version__
from aquamam.files import write_text
from aquamam.geometry.rotations import LOG_UNIFORM
from aquamam.plotting.cloud import Cloud
from aquamam.plotting.style import THEMES, density_scale
from aquamam.rendering.known import KnownObject

LARGEST_IMAGE = 512  # pixels: the page shows the input no larger
MOST_FACES = 200_000  # of an object in the page; a larger one is shown as axes
LOWEST = -1e6  # JSON knows no infinity


def page_data(
    cloud: Cloud, *, image: Image.Image, known: KnownObject | None = None, title: str = "", footer: str = ""
) -> dict[str, Any]:
    """All that the page shows, as plain JSON values."""
    scale = density_scale(cloud.log_density)
    return {
        "title": title or "Rotations that fit this image",
        "footer": footer
        or f"aquamam {__version__}; log densities with respect to volume π², quaternions xyzw, x right, y up, z towards the viewer.",
        "image": image_uri(image),
        "points": {
            "q": np.round(cloud.q, 5).tolist(),
            "logDensity": np.round(np.maximum(np.nan_to_num(cloud.log_density, neginf=LOWEST), LOWEST), 3).tolist(),
            "source": cloud.source.tolist(),
            "mode": cloud.mode.tolist(),
        },
        "modes": [mode.to_dict() for mode in cloud.modes],
        "answer": {
            "quaternion_xyzw": np.round(cloud.answer, 6).tolist(),
            "log_density": round(max(cloud.answer_log_density, LOWEST), 4),
            "words": cloud.words,
        },
        "uniform": LOG_UNIFORM,
        "ceiling": cloud.ceiling if math.isfinite(cloud.ceiling) else None,
        "range": [scale.vmin, scale.vmax],
        "colours": {
            name: {"density": list(theme.density), "muted": theme.muted, "accent": theme.accent}
            for name, theme in THEMES.items()
        },
        "object": object_data(known) if known is not None and len(known.mesh.faces) <= MOST_FACES else None,
    }


def object_data(known: KnownObject) -> dict[str, Any]:
    """A mesh and its camera for `web/object.js`: little-endian arrays in base64, per corner but for the vertices."""
    mesh, settings = known.mesh, known.settings
    colours = mesh.colours if mesh.colours is None or mesh.colours.ndim == 3 else mesh.colours[mesh.faces]
    background = settings.background if settings.background != "random" else (255, 255, 255)
    return {
        "name": known.name,
        "vertices": _base64(mesh.vertices, "<f4"),
        "faces": _base64(mesh.faces, "<u4"),
        "normals": None if mesh.normals is None else _base64(mesh.normals, "<f4"),
        "uv": None if mesh.uv is None else _base64(mesh.uv, "<f4"),
        "colours": None if colours is None else _base64(colours, "|u1"),
        "texture": None if mesh.texture is None else image_uri(Image.fromarray(mesh.texture), None),
        "settings": {**settings.to_dict(), "background": list(background)},
    }


def page(data: dict[str, Any]) -> str:
    """The whole HTML file for what `page_data` gave."""
    # "<" cannot end the script that holds the data, nor open a comment in it
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    parts = {
        "title": escape(data["title"]),
        "style": asset("page.css"),
        "data": text,
        "licence": asset("three.LICENSE").replace("--", "- -"),
        "three": asset("three.min.js"),
        "script": "\n".join(asset(name) for name in ("ball.js", "object.js", "page.js")),
    }
    html, *rest = asset("page.html").split("{{")
    for piece in rest:
        name, _, after = piece.partition("}}")
        html += parts[name] + after
    return html


def write_page(path: str | os.PathLike[str], data: dict[str, Any]) -> Path:
    """Write the page, whole or not at all."""
    return write_text(path, page(data))


def asset(name: str) -> str:
    """The text of a file of this folder."""
    return (resources.files("aquamam.pages") / "assets" / name).read_text(encoding="utf-8")


def image_uri(image: Image.Image, largest: int | None = LARGEST_IMAGE) -> str:
    """An image as a data URI, PNG."""
    if largest is not None and max(image.size) > largest:
        image = image.copy()
        image.thumbnail((largest, largest), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, format="PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def _base64(array: np.ndarray, kind: str) -> str:
    return base64.b64encode(np.ascontiguousarray(array).astype(kind).tobytes()).decode()
