"""The page of a fitted part: its symmetries, how it learned, where it errs, how often its sets hold the truth."""

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
from aquamam.pages.page import asset, image_uri, page
from aquamam.plotting.curves import read_log
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings, contact_sheet, render
from aquamam.shape.surface import directions, looking_from

SHOWN = 12  # views of the part, and training images
THUMB, COLUMNS = 80, 12  # of the views that the maps show one by one


def preview(mesh: Mesh, size: int = 160) -> Image.Image:
    """The part from twelve sides."""
    return contact_sheet(_views(mesh, directions(SHOWN), size), columns=6)


def worst(dataset: RotationDataset, cases: tuple[Case, ...]) -> list[dict[str, Any]]:
    """Cases with their pictures."""
    return [
        {"error_deg": case.error_deg, "log_likelihood": case.log_likelihood, "found": case.found, **shown}
        for case, shown in zip(cases, pictures(dataset, cases))
    ]


def _views(mesh: Mesh, towards: np.ndarray, size: int) -> np.ndarray:
    return render(mesh, looking_from(towards), RenderSettings(size=size))


class FitPage:
    """index.html of a fit's folder; written again whenever there is more to tell."""

    def __init__(self, out: Path, mesh: Mesh, dataset: RotationDataset):
        self.out, self.mesh, self.dataset = out, mesh, dataset

    @cached_property
    def _images(self) -> dict[str, Any]:
        examples = self.dataset.batch(range(SHOWN)).images.permute(0, 2, 3, 1).numpy()
        views = _views(self.mesh, directions(SHOWN), 192)
        shown = {"views_images": views, "examples": examples}
        return {name: [image_uri(pixels, kind="WEBP") for pixels in images] for name, images in shown.items()}

    def _thumbs(self, towards: list[list[float]]) -> dict[str, Any]:
        """The part from each direction of the map, on one sheet."""
        shown = _views(self.mesh, np.array(towards), THUMB)
        rows = -(-len(shown) // COLUMNS)
        sheet = np.full((rows * COLUMNS, THUMB, THUMB, 3), 255, np.uint8)
        sheet[: len(shown)] = shown
        pixels = sheet.reshape(rows, COLUMNS, THUMB, THUMB, 3).swapaxes(1, 2).reshape(rows * THUMB, COLUMNS * THUMB, 3)
        return {"sheet": image_uri(pixels, kind="WEBP"), "columns": COLUMNS, "rows": rows}

    def write(self, facts: dict[str, Any], *, log: Path | None = None, done: bool = False) -> Path:
        """Write what is known so far; a page that is not done loads itself anew."""
        data = {**facts, **self._images, "uniform": LOG_UNIFORM, "done": done, "version": __version__}
        data |= {"folder": self.out.name or ".", "curve": _curve(log)}
        if done:
            data["thumbs"] = self._thumbs(facts["views"]["directions"])
        again = "" if done or "note" in facts else '<meta http-equiv="refresh" content="20">'
        parts: dict[str, Any] = {
            "styles": ["report.css"],
            "scripts": ["report.js", "fit.js"],
            "data": data,
            "head": again,
        }
        return write_text(self.out / "index.html", page(f"{facts['name']}, fitted", asset("report.html"), **parts))


def _curve(log: Path | None) -> list[dict[str, float]]:
    """Minutes, images and log-likelihoods of every validation so far."""
    if log is None or not log.exists() or not log.stat().st_size:
        return []
    names = {"images": "images", "valid": "log_likelihood", "train": "train_log_likelihood"}
    return [{"minutes": r["elapsed"] / 60, **{name: r[key] for name, key in names.items()}} for r in read_log(log)]
