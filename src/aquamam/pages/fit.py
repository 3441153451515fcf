"""The page of a fitted part: what it looks like, its symmetries, how it learned, where it errs, and how often its sets hold the truth."""

import base64
import html
import io
import json
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from aquamam import __version__
from aquamam.data.base import RotationDataset
from aquamam.evaluation.results import Case
from aquamam.files import write_text
from aquamam.geometry.rotations import LOG_UNIFORM
from aquamam.pages.evaluation import pictures
from aquamam.pages.page import asset
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings, contact_sheet, render
from aquamam.shape.surface import directions, looking_from

SHOWN = 12  # views of the part, and training images
THUMB, COLUMNS = 80, 12  # of the views that the maps show one by one


def preview(mesh: Mesh, size: int = 160) -> Image.Image:
    """The part from twelve sides."""
    return contact_sheet(_views(mesh, SHOWN, size), columns=6)


def worst(dataset: RotationDataset, cases: tuple[Case, ...]) -> list[dict[str, Any]]:
    """Cases with their pictures."""
    return [
        {"error_deg": case.error_deg, "log_likelihood": case.log_likelihood, "found": case.found, **shown}
        for case, shown in zip(cases, pictures(dataset, cases))
    ]


def _views(mesh: Mesh, count: int, size: int) -> np.ndarray:
    return render(mesh, looking_from(directions(count)), RenderSettings(size=size))


class Page:
    """index.html of a fit's folder; written again whenever there is more to tell."""

    def __init__(self, out: Path, mesh: Mesh, dataset: RotationDataset):
        self.out, self.mesh, self.dataset = out, mesh, dataset

    @cached_property
    def _images(self) -> dict[str, Any]:
        examples = self.dataset.batch(range(SHOWN)).images.permute(0, 2, 3, 1).numpy()
        return {
            "views_images": [_uri(pixels) for pixels in _views(self.mesh, SHOWN, 192)],
            "examples": [_uri(pixels) for pixels in examples],
        }

    def _thumbs(self, towards: list[list[float]]) -> dict[str, Any]:
        """The part from each direction of the map, on one sheet."""
        shown = render(self.mesh, looking_from(np.array(towards)), RenderSettings(size=THUMB))
        rows = -(-len(shown) // COLUMNS)
        sheet = np.full((rows * COLUMNS, THUMB, THUMB, 3), 255, np.uint8)
        sheet[: len(shown)] = shown
        pixels = sheet.reshape(rows, COLUMNS, THUMB, THUMB, 3).swapaxes(1, 2).reshape(rows * THUMB, COLUMNS * THUMB, 3)
        return {"sheet": _uri(pixels), "columns": COLUMNS, "rows": rows}

    def write(self, facts: dict[str, Any], *, log: Path | None = None, done: bool = False) -> Path:
        """Write what is known so far; a page that is not done loads itself anew."""
        data = {**facts, **self._images, "uniform": LOG_UNIFORM, "done": done, "version": __version__}
        data["folder"] = self.out.name or "."
        data["curve"] = _curve(log)
        if done:
            data["thumbs"] = self._thumbs(facts["views"]["directions"])
        text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # no name may end the script
        page = asset("fit.html").replace("__TITLE__", html.escape(facts["name"])).replace("__DATA__", text)
        if not done and "note" not in facts:
            page = page.replace("<!--reload-->", '<meta http-equiv="refresh" content="20">')
        return write_text(self.out / "index.html", page)


def _curve(log: Path | None) -> list[dict[str, float]]:
    """Minutes and log-likelihoods of every validation so far."""
    if log is None or not log.exists():
        return []
    records = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines() if line.endswith("}")]
    return [
        {
            "minutes": record["elapsed"] / 60,
            "images": record["images"],
            "valid": record["log_likelihood"],
            "train": record["train_log_likelihood"],
        }
        for record in records
    ]


def _uri(pixels: np.ndarray) -> str:
    file = io.BytesIO()
    Image.fromarray(np.ascontiguousarray(pixels)).save(file, "WEBP", quality=88)
    return "data:image/webp;base64," + base64.b64encode(file.getvalue()).decode()
