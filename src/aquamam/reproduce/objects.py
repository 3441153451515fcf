"""The die and the cylinder (Section 4.2 and the appendix): a trained model judged, and Figures 7 to 9.

With the paper's own mesh the figures stand beside the paper's. IPDF, trained with the same encoder for as long, is
judged on some of the same images.
"""

import math
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from tqdm import tqdm

from aquamam.baselines.ipdf import IPDF
from aquamam.checkpoints.checkpoint import load, resolve
from aquamam.data.renders import RenderedDataset
from aquamam.errors import InputError, require
from aquamam.evaluation.evaluate import evaluate
from aquamam.evaluation.metrics import rotation_error
from aquamam.fit.part import open_part, placed
from aquamam.geometry.grid import cell_volume, grid_size
from aquamam.geometry.rotations import rotvec_to_quat
from aquamam.network.model import RotationModel
from aquamam.plotting import ball, make_cloud, save
from aquamam.rendering.known import KnownObject
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid
from aquamam.reproduce.report import finish
from aquamam.shape.symmetries import find_symmetries

SEED = 77_000  # of held-out renders, far from any training seed
KEPT = (
    *("images", "mean_log_likelihood", "log_likelihood_se", "mean_error_deg", "median_error_deg", "acc15", "acc30"),
    *("spread_deg", "strategies", "symmetries", "throughput", "samples", "seed", "measure"),
)

# file, rotation vector (radians), samples and uniform rotations of the ball
VIEWS: dict[str, list[tuple[str, Any, int, int]]] = {
    "die": [
        ("die_five.png", (0.0, 0.0, 0.4), 499, 500),
        ("die_unambiguous.png", (-0.55, 0.75, 0.2), 499, 500),
        ("die_samples.png", (0.0, 0.0, 0.4), 1000, 0),
    ],
    "cylinder": [("cylinder.png", (math.radians(35), 0.3, 0.5), 499, 500)],
}


def run(
    out: Path,
    name: str,
    *,
    model: str | None = None,
    mesh: str | None = None,
    ipdf: str | None = None,
    images: int = 300,
    grid_images: int = 20,
    level: int = 5,
    seed: int = 0,
) -> dict[str, Any]:
    """Evaluate a trained model on fresh renders and draw the paper's views; returns what OUT/NAME.json holds.

    mesh: the paper's file; without it the object is ours. ipdf: a checkpoint of IPDF, judged on so many of the same
    renders with a grid of that level.
    """
    path = resolve(model or f"{name}-{'plain' if mesh is None else 'paper'}")
    network, shown = load(path), shown_mesh(name, mesh)
    told, config = network.info.get("data") or {}, network.config.to_dict()
    check_object(path, told.get("objects", ()), name, shown)
    settings = replace(RenderSettings.from_dict(told.get("settings") or {}), size=config.get("image_size", 224))
    known = KnownObject(name=name, mesh=shown, settings=settings)
    groups = None if mesh is None else {shown.name: network.symmetry}
    drawn: dict[str, Any] = {"seed": SEED + seed, "split": "test", "length": images, "symmetries": groups}
    dataset = RenderedDataset(solid(name) if mesh is None else shown, settings, lookalikes=mesh is not None, **drawn)
    evaluation = evaluate(network, dataset, seed=seed)
    found = evaluation.to_dict()
    result = {
        **{key: found[key] for key in KEPT},
        "ceiling": evaluation.ceiling,
        "object": "our own object" if mesh is None else f"the paper's {Path(mesh).name}",
        **{"verdict": evaluation.verdict, "kind": network.kind, "config": config},
        **{"parameters": network.parameter_count, "image_size": settings.size},
        "views": [draw_view(out / file, network, known, *how, seed=seed) for file, *how in VIEWS[name]],
    }
    parts = {name: result}
    if ipdf is not None:
        result["ipdf"] = beside_ipdf(network, ipdf, dataset, min(grid_images, images), level)
        parts["beside-ipdf"] = result["ipdf"]
    return finish(out, name, result, parts)


def shown_mesh(name: str, file: str | None) -> Mesh:
    """Our own solid, or the mesh of a file, placed as `aquamam fit` renders it."""
    if file is None:
        return solid(name).mesh
    whole = open_part(file)
    return placed(whole, find_symmetries(whole))[0]


def check_object(path: Path, told: Iterable[Any], name: str, shown: Mesh) -> None:
    """Raise InputError if the model's description says that it was trained on something else."""
    trained = [one for one in told if isinstance(one, dict)]
    names, meshes = [one.get("name") for one in trained], [one.get("mesh") for one in trained]
    same = meshes == [shown.hash] if all(meshes) else names == [name]
    seen = f"{path} was trained on {', '.join(map(str, names))}"
    require(same or not trained, f"{seen}, not on the {name} that is shown; give another --model or --mesh.")


def draw_view(
    file: Path, network: RotationModel, known: KnownObject, rotvec: Any, drawn: int, uniform: int, *, seed: int
) -> dict[str, Any]:
    """One of the paper's figures: the posterior of a view of the object; returns its figures."""
    q = rotvec_to_quat(torch.tensor(rotvec, dtype=torch.float64))
    image = Image.fromarray(render(known.mesh, q.numpy(), known.settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        cloud = make_cloud(network(image), samples=drawn, uniform=uniform, truth=q, generator=generator)
    save(ball(cloud, image=image, known=known), file)
    return {
        **{"file": file.name, "rotation_xyzw": q.tolist(), "log_density_of_truth": float(cloud.log_density[0])},
        "highest_of_uniform": float(cloud.log_density[cloud.source == 2].max()) if uniform else None,
        "modes": [mode.to_dict() for mode in cloud.modes],
    }


@torch.inference_mode()
def beside_ipdf(network: RotationModel, ipdf: str, data: RenderedDataset, images: int, level: int) -> dict[str, Any]:
    """Both systems on the same images; IPDF is normalised as in the paper, on the grid rotated to the truth."""
    other, group = load(ipdf), network.symmetry
    if not isinstance(other, IPDF):
        raise InputError(f"--ipdf must be a checkpoint of IPDF, got a model of the kind {other.kind}; see --model.")
    columns = defaultdict[str, list[float]](list)
    for i in tqdm(range(images), desc="IPDF's grid", unit="img", disable=None):
        batch = data.batch([i])
        truth = batch.rotations[0, :1]
        grid = other.posterior(batch.images, normaliser="truth", level=level)
        for who, posterior in (("ipdf", grid), ("ours", network(batch.images))):
            columns[f"{who}_ll"].append(float(posterior.log_prob(truth[None].float())))
            error = rotation_error(posterior.mode[0].double(), truth.double(), group)
            columns[f"{who}_error"].append(math.degrees(float(error)))
    result = {"images": images, "grid": grid_size(level), "ceiling": -math.log(cell_volume(level))}
    for name, column in columns.items():
        values = torch.tensor(column, dtype=torch.float64)
        result |= {name: float(values.mean()), f"{name}_se": float(values.std()) / images**0.5 if images > 1 else 0.0}
    hours = {f"{who}_hours": one.info.get("hours") or 0.0 for who, one in (("ipdf", other), ("ours", network))}
    return {**result, **hours, "parameters": other.parameter_count}
