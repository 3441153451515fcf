"""An evaluation as one self-contained page: curves, tables, and the worst cases as pictures."""

import base64
import html
import io
import json
from dataclasses import replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from aquamam.data.base import RotationDataset
from aquamam.data.renders import RenderedDataset
from aquamam.evaluation.results import Case, Evaluation
from aquamam.files import write_json, write_text
from aquamam.rendering import solids
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings, render

PICTURE = 128  # pixels of a side


def write_report(folder: Path, evaluation: Evaluation, dataset: RotationDataset, about: dict[str, Any]) -> Path:
    """Write evaluation.json and evaluation.html; `about` says what was evaluated on what."""
    facts = {**about, **evaluation.to_dict()}
    write_json(folder / "evaluation.json", facts)
    return write_text(folder / "evaluation.html", page_of(evaluation, dataset, about))


def page_of(evaluation: Evaluation, dataset: RotationDataset, about: dict[str, Any]) -> str:
    """The page's HTML; it loads nothing from anywhere."""
    facts = {**about, **evaluation.to_dict(), "verdict": evaluation.verdict, "symmetric": evaluation.symmetric}
    for name, cases in (("worst", evaluation.worst), ("unlikely", evaluation.unlikely)):
        facts[name] = [{**case, **shown} for case, shown in zip(facts[name], pictures(dataset, cases))]
    data = json.dumps(facts).replace("<", "\\u003c")  # a name must not end the script that holds it
    template = (resources.files("aquamam.pages") / "assets" / "evaluation.html").read_text(encoding="utf-8")
    return template.replace("__TITLE__", html.escape(str(about.get("model", "")))).replace("__DATA__", data)


def pictures(dataset: RotationDataset, cases: tuple[Case, ...]) -> list[dict[str, str]]:
    """Of each case the image as data URI, and where the object's mesh is at hand renders of truth and prediction."""
    shown = [{"image": _data_uri(dataset.image(case.index))} for case in cases]
    settings = dataset.describe().get("settings")
    settings = RenderSettings.from_dict(settings) if isinstance(settings, dict) else RenderSettings()
    background = (255, 255, 255) if settings.background == "random" else settings.background
    settings = replace(settings, size=PICTURE, background=background)
    for label in {case.label for case in cases}:
        mesh = mesh_of(dataset, label)
        if mesh is None:
            continue
        of_label = [i for i, case in enumerate(cases) if case.label == label]
        for what in ("truth", "prediction"):
            q = np.array([getattr(cases[i], what) for i in of_label])
            for i, pixels in zip(of_label, render(mesh, q, settings)):
                shown[i][f"{what}_image"] = _data_uri(pixels)
    return shown


def mesh_of(dataset: RotationDataset, label: str) -> Mesh | None:
    """The object that a data set shows, if it was rendered here from a mesh that is still at hand."""
    if isinstance(dataset, RenderedDataset):
        return dataset.recipe.meshes[dataset.recipe.names.index(label)]
    for thing in dataset.describe().get("objects", ()):
        if isinstance(thing, dict) and thing.get("name") == label and label in solids.NAMES:
            mesh = solids.solid(label).mesh
            return mesh if thing.get("mesh") == mesh.hash else None
    return None


def _data_uri(pixels: np.ndarray) -> str:
    image = Image.fromarray(np.ascontiguousarray(pixels))
    image.thumbnail((2 * PICTURE, 2 * PICTURE))
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()
