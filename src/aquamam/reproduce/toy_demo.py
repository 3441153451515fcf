"""A first look: a small model learns the toy data in seconds and shows what a distribution over rotations is."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure

from aquamam.checkpoints.checkpoint import save_model
from aquamam.reproduce.fit_pairs import FAST, Fit
from aquamam.reproduce.judging import Drawn, judge
from aquamam.reproduce.pairs import Pairs, Sentences
from aquamam.reproduce.results import BLUE, GREY, ORANGE, save_figure, style, write_result
from aquamam.reproduce.toy import draw, toy_pairs
from aquamam.network.model import AQuaMaM, ModelConfig
from aquamam.geometry.rotations import quat_to_rotvec

# The toy model's little sister: its rotations are told to a quarter of a degree.
MODEL = ModelConfig(bins=500, dim=64, heads=4, layers=2, hidden=128, embedding="category", categories=6, tokens=8)
RECIPE = replace(FAST, steps=400)


def run(out: Path, *, seed: int = 0, steps: int = RECIPE.steps, samples: int = 12_000) -> dict[str, Any]:
    """Train, sample, judge and draw; returns what OUT/demo.json holds."""
    config = replace(RECIPE, seed=seed, steps=steps)
    torch.manual_seed(seed)
    model = AQuaMaM(MODEL)
    pairs = toy_pairs()
    sentences = Sentences(pairs, model.cells)
    fit = Fit(model, sentences, config)
    fit.run("learn")
    with torch.no_grad():
        log_p = sentences.log_probs(model.eval())
    drawn = draw(model, sentences, samples, seed)
    result = {
        "log_likelihood": float(sentences.mean(log_p + sentences.log_factor)),
        "ceiling": sentences.ceiling(),
        **judge(pairs, drawn, seed),
        "seconds": fit.seconds,
        "cpu_seconds": fit.cpu_seconds,
        "steps": steps,
        "seed": seed,
        "parameters": model.parameter_count,
        "bins": MODEL.bins,
        "measure": "pi^2",
    }
    write_result(out, "demo", result)
    save_model(model, out / "model.safetensors", {"experiment": "demo", "log_likelihood": result["log_likelihood"]})
    rotation_balls(out / "demo.png", pairs, drawn)
    return result


def rotation_balls(path: Path, pairs: Pairs, drawn: Drawn, most: int = 400) -> Path:
    """Sampled rotations of each viewpoint as points angle * axis in the ball of radius 180 degrees, rings around the true ones."""
    with style():
        figure = Figure(figsize=(10.5, 7.4))
        for i in range(pairs.categories):
            axis: Any = figure.add_subplot(2, -(-pairs.categories // 2), i + 1, projection="3d")
            true = torch.rad2deg(quat_to_rotvec(pairs.of(i)))
            sampled = torch.rad2deg(quat_to_rotvec(drawn.q[drawn.category == i][:most]))
            draw_ball(axis)
            axis.scatter(*sampled.T, s=10, color=BLUE, lw=0, depthshade=False)
            axis.scatter(*true.T, s=90, facecolors="none", edgecolors=ORANGE, linewidths=1.4, depthshade=False)
            meaning = "tells the rotation" if len(true) == 1 else f"{len(true)} rotations look the same"
            axis.set_title(f"viewpoint {i}: {meaning}", y=0.97)
        figure.suptitle(
            "Samples of the model (blue) and the true rotations (orange rings)\n"
            "a point is a rotation: its direction is the axis, its distance from the centre the angle (up to 180°)"
        )
        return save_figure(figure, path)


def draw_ball(axis: Any) -> None:
    """The ball of rotation vectors, 180 degrees in radius, with its equator and axis, on 3D axes."""
    turn, fall = torch.meshgrid(torch.linspace(0, 2 * torch.pi, 49), torch.linspace(0, torch.pi, 25), indexing="ij")
    sphere = [180 * part.numpy() for part in (turn.cos() * fall.sin(), turn.sin() * fall.sin(), fall.cos())]
    axis.plot_surface(*sphere, color=GREY, alpha=0.09, lw=0, shade=False)
    axis.plot(*(part[:, 12] for part in sphere), color=GREY, lw=0.8)  # the equator
    axis.plot([0, 0], [0, 0], [-180, 180], color=GREY, lw=0.8)
    axis.set(xlim=(-180, 180), ylim=(-180, 180), zlim=(-180, 180))
    axis.set_box_aspect((1, 1, 1), zoom=1.35)
    axis.view_init(22, -60)
    axis.set_axis_off()
