"""The die and the cylinder (Section 4.2 and the appendix): a trained model judged, and Figures 7 to 9."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from aquamam.checkpoints.checkpoint import load, resolve
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


# file, rotation vector (radians), samples and uniform rotations of the ball
VIEWS = {
    "die": [
        ("die_five.png", (0.0, 0.0, 0.4), 499, 500),
        ("die_unambiguous.png", (-0.55, 0.75, 0.2), 499, 500),
        ("die_samples.png", (0.0, 0.0, 0.4), 1000, 0),
    ],
    "cylinder": [("cylinder.png", (math.radians(35), 0.3, 0.5), 499, 500)],
}


def run(out: Path, name: str, *, model: str | None = None, images: int = 300, seed: int = 0) -> dict[str, Any]:
    """Evaluate a trained model on fresh renders and draw the paper's views; returns what OUT/NAME.json holds."""
    path = resolve(model or name)
    network = load(path)
    data = network.info.get("data") or {}
    shown = [thing.get("name") for thing in data.get("objects", ()) if isinstance(thing, dict)]
    if shown and shown != [name]:
        told = ", ".join(map(str, shown))
        raise InputError(f"{path} was trained on {told}, not on the {name}; give another --model.")
    config = network.config.to_dict()
    stored = RenderSettings.from_dict(data["settings"]) if data.get("settings") else RenderSettings()
    known = KnownObject(name=name, mesh=solid(name).mesh, settings=replace(stored, size=config.get("image_size", 224)))
    dataset = RenderedDataset(solid(name), known.settings, seed=SEED + seed, split="test", length=images)
    evaluation = evaluate(network, dataset, seed=seed, threads=1)
    found, views = evaluation.to_dict(), []
    for file, rotvec, drawn, uniform in VIEWS[name]:
        q = rotvec_to_quat(torch.tensor(rotvec, dtype=torch.float64))
        image = Image.fromarray(render(known.mesh, q.numpy(), known.settings))
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            cloud = make_cloud(network(image), samples=drawn, uniform=uniform, truth=q, generator=generator)
        save(ball(cloud, image=image, known=known), out / file)
        highest = float(cloud.log_density[cloud.source == 2].max()) if uniform else None
        view = {"file": file, "rotation_xyzw": q.tolist(), "log_density_of_truth": float(cloud.log_density[0])}
        views.append({**view, "highest_of_uniform": highest, "modes": [mode.to_dict() for mode in cloud.modes]})
    result = {
        **{key: found[key] for key in KEPT},
        "ceiling": math.inf if found["ceiling"] is None else found["ceiling"],
        **{"verdict": evaluation.verdict, "views": views, "kind": network.kind, "config": config},
        **{"parameters": network.parameter_count, "image_size": known.settings.size},
        **{"samples": evaluation.samples, "seed": seed, "measure": "pi^2"},
    }
    return finish(out, name, result)
