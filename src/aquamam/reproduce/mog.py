"""AQuaMaM-MoG (the paper's appendix): the strain of its change of variables, and its samples."""

from pathlib import Path
from typing import Any

import numpy as np
import torch

from aquamam.checkpoints.checkpoint import load
from aquamam.geometry.rotations import geodesic_angle, quat_to_rotvec
from aquamam.plotting import ball, make_cloud, save
from aquamam.reproduce.report import BLUE, ORANGE, drawing, finish
from aquamam.reproduce.toy import SCALES, Scale, run_system, toy_pairs

UNIMODAL = 0  # the viewpoint with one rotation


def run(
    out: Path, scale: Scale = SCALES["cpu"], *, samples: int = 40_000, shown: int = 1000, device: str = "cpu"
) -> dict[str, Any]:
    """Train on the toy data, draw the appendix's figures; returns what OUT/mog.json holds."""
    pairs = toy_pairs()
    result = run_system("mog", pairs, out, scale, samples, device)
    true = pairs.of(UNIMODAL)[0]
    with torch.no_grad():
        posterior = load(out / "mog.safetensors")(torch.tensor([UNIMODAL]))
        generator = torch.Generator().manual_seed(scale.mog.seed)
        cloud = make_cloud(posterior, samples=shown, uniform=0, truth=true, generator=generator)
    distance = torch.rad2deg(geodesic_angle(torch.from_numpy(cloud.q[1:]).double(), true))
    far = {
        "samples": shown,
        "mean_distance_deg": float(distance.mean()),
        "median_distance_deg": float(distance.median()),
        "angle_of_truth_deg": float(torch.rad2deg(quat_to_rotvec(true).norm())),
        "farther_than_1_deg": float((distance > 1).double().mean()),
        "farther_than_10_deg": float((distance > 10).double().mean()),
    }
    draw_denominators(out / "mog_denominators.png")
    save(ball(cloud), out / "mog_samples.png")
    return finish(out, "mog", {**result, "unimodal": far})


def draw_denominators(path: Path) -> None:
    """|u^2 - q^2| over (-u, u) for u = 1 and 0.5."""
    with drawing(path, 9.2, 3.4) as figure:
        for axis, u, letter in zip(figure.subplots(1, 2), (1.0, 0.5), "ab"):
            q = np.linspace(-u, u, 401)
            axis.plot(q, np.abs(u**2 - q**2), color=BLUE, lw=2.2)
            axis.plot([-u, u], [0, 0], "o", color=ORANGE, clip_on=False, zorder=5)
            axis.text(0, 0.1 * u**2, "at the ends $2u / (u^2 - q_c^2)$ is infinite", color=ORANGE, ha="center")
            axis.set(xlim=(-u, u), ylim=(0, 1.08 * u**2), xlabel="$q_c$", ylabel="$|u^2 - q_c^2|$")
            axis.set_xticks([-u, -u / 2, 0, u / 2, u])
            axis.set_title(f"({letter}) u = {u:g}")
