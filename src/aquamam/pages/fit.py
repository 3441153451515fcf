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
    names = ("error_deg", "log_likelihood", "found")
    told = [{name: getattr(case, name) for name in names} for case in cases]
    return [{**numbers, **shown} for numbers, shown in zip(told, pictures(dataset, cases))]


def _views(mesh: Mesh, towards: np.ndarray, size: int) -> np.ndarray:
    return render(mesh, looking_from(towards), RenderSettings(size=size))


class FitPage:
    """index.html of a fit's folder; written again whenever there is more to tell."""

    def __init__(self, out: Path, mesh: Mesh, dataset: RotationDataset):
        self.out, self.mesh, self.dataset = out, mesh, dataset

    @cached_property
    def images(self) -> dict[str, Any]:
        """The part from twelve sides, and twelve training images."""
        examples = self.dataset.batch(range(SHOWN)).images.permute(0, 2, 3, 1).numpy()
        shown = {"views_images": _views(self.mesh, directions(SHOWN), 192), "examples": examples}
        return {name: [image_uri(pixels, kind="WEBP") for pixels in images] for name, images in shown.items()}

    def thumbs(self, towards: list[list[float]]) -> dict[str, Any]:
        """The part from each direction of the map, on one sheet."""
        sheet = contact_sheet(_views(self.mesh, np.array(towards), THUMB), COLUMNS, gap=0)
        return {"sheet": image_uri(sheet, kind="WEBP"), "columns": sheet.width // THUMB, "rows": sheet.height // THUMB}

    def write(self, facts: dict[str, Any], *, log: Path | None = None, done: bool = False) -> Path:
        """Write what is known so far, `log` is the training's; a page that is not done loads itself anew."""
        records = read_log(log) if log is not None and log.exists() and log.stat().st_size else []
        names = {"images": "images", "valid": "log_likelihood", "train": "train_log_likelihood"}
        curve = [{"minutes": one["elapsed"] / 60, **{name: one[names[name]] for name in names}} for one in records]
        data = {**facts, **self.images, "uniform": LOG_UNIFORM, "done": done, "version": __version__}
        data |= {"folder": self.out.name or ".", "curve": curve}
        if done:
            data["thumbs"] = self.thumbs(facts["views"]["directions"])
        again = "" if done or "note" in facts else '<meta http-equiv="refresh" content="20">'
        parts: dict[str, Any] = {"styles": ["report.css"], "scripts": ["report.js", "fit.js"], "data": data}
        title = f"{facts['name']}, fitted"
        return write_text(self.out / "index.html", page(title, asset("report.html"), head=again, **parts))
