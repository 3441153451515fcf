"""One writer for every page: body, styles, scripts and data become one HTML file that asks for nothing else."""

import base64
import io
import json
import re
from collections.abc import Sequence
from html import escape
from importlib import resources
from typing import Any

import numpy as np
from PIL import Image

from aquamam.files import finite


def page(
    title: str, body: str, *, styles: Sequence[str], scripts: Sequence[str] = (), data: Any = None, head: str = ""
) -> str:
    """The HTML of a page; styles and scripts are names of assets, body and head are HTML, and scripts read `data`."""
    parts = {"style": "\n".join(map(asset, styles)), "script": "\n".join(map(asset, scripts))}
    return fill(asset("page.html"), title=escape(title), head=head, body=body, data=script_json(data), **parts)


def asset(name: str) -> str:
    """The text of a file in assets/."""
    return (resources.files("aquamam.pages") / "assets" / name).read_text(encoding="utf-8")


def fill(template: str, **parts: str) -> str:
    """A template with HTML in place of each {{name}}; names in what is put in stay as they are."""
    return re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], template)


def script_json(data: Any) -> str:
    """JSON that is safe in a script element: "<" could end the element, and numbers that are not finite are null."""
    return json.dumps(finite(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def image_uri(image: Image.Image | np.ndarray, *, largest: int | None = None, kind: str = "PNG") -> str:
    """An image as a data URI, scaled down to at most `largest` pixels a side."""
    picture = Image.fromarray(np.ascontiguousarray(image)) if isinstance(image, np.ndarray) else image.copy()
    if largest is not None:
        picture.thumbnail((largest, largest), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    picture.save(buffer, kind, quality=88)  # PNG is lossless and takes no heed of it
    return data_uri(buffer.getvalue(), kind)


def data_uri(blob: bytes, kind: str = "PNG") -> str:
    """An image's file as a data URI."""
    return f"data:image/{kind.lower()};base64," + base64.b64encode(blob).decode()
