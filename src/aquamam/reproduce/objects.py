"""The die and the cylinder (Section 4.2 and the appendix): a trained model judged, and Figures 7 to 9."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image

from aquamam.checkpoints.checkpoint import bundled, load, resolve
from aquamam.data.renders import RenderedDataset
from aquamam.errors import InputError
from aquamam.evaluation.evaluate import evaluate
from aquamam.geometry.rotations import rotvec_to_quat
from aquamam.plotting import ball, make_cloud, save
from aquamam.rendering.known import KnownObject
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid
from aquamam.reproduce.report import finish

SEED = 77_000  # of held-out renders, far from any training seed
KEPT = (
    *("images", "mean_log_likelihood", "log_likelihood_se", "mean_error_deg", "median_error_deg", "acc15", "acc30"),
    *("spread_deg", "strategies", "symmetries", "throughput"),
)


class View(NamedTuple):
    """A rotation worth a picture, and how many rotations its ball holds: the paper's numbers by default."""

    file: str
    rotvec: tuple[float, float, float]  # radians
    samples: int = 499
    uniform: int = 500


VIEWS = {
    "die": (
        View("die_five.png", (0.0, 0.0, 0.4)),
        View("die_unambiguous.png", (-0.55, 0.75, 0.2)),
        View("die_samples.png", (0.0, 0.0, 0.4), samples=1000, uniform=0),
    ),
    "cylinder": (View("cylinder.png", (math.radians(35), 0.3, 0.5)),),
}


def checkpoint_of(name: str, given: str | None) -> Path:
    """The checkpoint to show: the given one, or the bundled one of that name."""
    if given is None and name not in bundled():
        raise InputError(
            f"there is no bundled model {name!r}; train one with `aquamam train {name}-small --data render:{name} "
            f"--out runs/{name}` and give it with --model runs/{name}."
        )
    return resolve(given or name)


def run(
    out: Path, name: str, *, model: str | None = None, images: int = 300, samples: int = 100, seed: int = 0
) -> dict[str, Any]:
    """Evaluate a trained model on fresh renders and draw the paper's views; returns what OUT/NAME.json holds."""
    path = checkpoint_of(name, model)
    network = load(path)
    data = network.info.get("data") or {}
    shown = [thing.get("name") for thing in data.get("objects", ()) if isinstance(thing, dict)]
    if shown and shown != [name]:
        raise InputError(
            f"{path} was trained on {', '.join(map(str, shown))}, not on the {name}; give another --model."
        )
    config = network.config.to_dict()
    stored = RenderSettings.from_dict(data["settings"]) if data.get("settings") else RenderSettings()
    known = KnownObject(name=name, mesh=solid(name).mesh, settings=replace(stored, size=config.get("image_size", 224)))
    dataset = RenderedDataset(solid(name), known.settings, seed=SEED + seed, split="test", length=images)
    evaluation = evaluate(network, dataset, samples=samples, seed=seed, threads=1)
    found = evaluation.to_dict()
    result = {
        **{key: found[key] for key in KEPT},
        "ceiling": math.inf if found["ceiling"] is None else found["ceiling"],
        "verdict": evaluation.verdict,
        "views": [_picture(out, network, known, view, seed) for view in VIEWS[name]],
        "kind": network.kind,
        "parameters": network.parameter_count,
        "config": config,
        "image_size": known.settings.size,
        "samples": samples,
        "seed": seed,
        "measure": "pi^2",
    }
    return finish(out, name, result)


def _picture(out: Path, network: Any, known: KnownObject, view: View, seed: int) -> dict[str, Any]:
    q = rotvec_to_quat(torch.tensor(view.rotvec, dtype=torch.float64))
    image = Image.fromarray(render(known.mesh, q.numpy(), known.settings))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        cloud = make_cloud(network(image), samples=view.samples, uniform=view.uniform, truth=q, generator=generator)
    save(ball(cloud, image=image, known=known), out / view.file)
    return {
        "file": view.file,
        "rotation_xyzw": q.tolist(),
        "log_density_of_truth": float(cloud.log_density[0]),
        "highest_of_uniform": float(cloud.log_density[cloud.source == 2].max()) if view.uniform else None,
        "modes": [mode.to_dict() for mode in cloud.modes],
    }
