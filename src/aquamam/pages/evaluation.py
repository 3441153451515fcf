"""An evaluation as one self-contained page: curves, tables, and the worst cases as pictures."""

from pathlib import Path
from typing import Any

from aquamam.data.base import RotationDataset
from aquamam.data.renders import RenderedDataset
from aquamam.evaluation.results import Case, Evaluation
from aquamam.files import write_json, write_text
from aquamam.pages.page import asset, image_uri, page
from aquamam.rendering import solids
from aquamam.rendering.known import KnownObject
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings

PICTURE = 128  # pixels of a side


def write_report(folder: Path, evaluation: Evaluation, dataset: RotationDataset, about: dict[str, Any]) -> Path:
    """Write evaluation.json and evaluation.html; `about` says what was evaluated on what."""
    write_json(folder / "evaluation.json", {**about, **evaluation.to_dict()})
    return write_text(folder / "evaluation.html", evaluation_page(evaluation, dataset, about))


def evaluation_page(evaluation: Evaluation, dataset: RotationDataset, about: dict[str, Any]) -> str:
    """The HTML of the page."""
    facts = {**about, **evaluation.to_dict(), "verdict": evaluation.verdict, "symmetric": evaluation.symmetric}
    for name, cases in (("worst", evaluation.worst), ("unlikely", evaluation.unlikely)):
        facts[name] = [{**case, **shown} for case, shown in zip(facts[name], pictures(dataset, cases))]
    title = f"Evaluation of {about.get('model', 'a model')}"
    return page(title, asset("report.html"), styles=["report.css"], scripts=["report.js", "evaluation.js"], data=facts)


def pictures(dataset: RotationDataset, cases: tuple[Case, ...]) -> list[dict[str, str]]:
    """Of each case the image as data URI, and where the object's mesh is at hand renders of truth and prediction."""
    shown = [{"image": image_uri(dataset.image(case.index), largest=2 * PICTURE)} for case in cases]
    told = dataset.describe().get("settings")
    settings = RenderSettings.from_dict(told) if isinstance(told, dict) else RenderSettings()
    for case, uris in zip(cases, shown):
        if (mesh := mesh_of(dataset, case.label)) is not None:
            known = KnownObject(name=case.label, mesh=mesh, settings=settings)
            for name, q in (("truth_image", case.truth), ("prediction_image", case.prediction)):
                uris[name] = image_uri(known.picture(q, PICTURE))
    return shown


def mesh_of(dataset: RotationDataset, label: str) -> Mesh | None:
    """The object that a data set shows, if it was rendered here from a mesh that is still at hand."""
    if isinstance(dataset, RenderedDataset):
        return dataset.spec.meshes[dataset.spec.names.index(label)]
    objects = [thing for thing in dataset.describe().get("objects", ()) if isinstance(thing, dict)]
    for thing in objects:
        name = thing.get("name")
        if name in solids.NAMES and (name == label or len(objects) == 1):  # the only one, whatever classes are called
            mesh = solids.solid(name).mesh
            return mesh if thing.get("mesh") == mesh.hash else None
    return None
