"""AQuaMaM-MoG (the paper's appendix): why its change of variables strains a mixture of Gaussians, and where its samples fall."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import figure as plots
from torch import Tensor

from aquamam.checkpoints.checkpoint import load
from aquamam.reproduce.toy_demo import draw_ball
from aquamam.reproduce.results import BLACK, BLUE, GREY, ORANGE, save_figure, style
from aquamam.reproduce.sections import Figure, Row, Section, finish
from aquamam.reproduce.toy import toy_pairs
from aquamam.reproduce.toy_others import CPU, Scale, run_mog
from aquamam.geometry.rotations import geodesic_angle, quat_to_rotvec

UNIMODAL = 0  # the viewpoint with one rotation


def run(
    out: Path, scale: Scale = CPU, *, samples: int = 40_000, shown: int = 1000, device: str | None = None
) -> dict[str, Any]:
    """Train on the toy data, draw the appendix's two figures; returns what OUT/mog.json holds."""
    pairs = toy_pairs()
    result = run_mog(pairs, out, scale, samples, device)
    (out / "mog_state.safetensors").unlink(missing_ok=True)
    generator = torch.Generator().manual_seed(scale.mog.seed)
    with torch.no_grad():
        drawn = load(out / "mog.safetensors")(torch.arange(pairs.categories)).sample((shown,), generator=generator)
    true = pairs.of(UNIMODAL)[0]
    distance = torch.rad2deg(geodesic_angle(drawn[:, UNIMODAL].double(), true))
    result["unimodal"] = {
        "samples": shown,
        "mean_distance_deg": float(distance.mean()),
        "median_distance_deg": float(distance.median()),
        "angle_of_truth_deg": float(torch.rad2deg(quat_to_rotvec(true).norm())),
        "farther_than_1_deg": float((distance > 1).double().mean()),
        "farther_than_10_deg": float((distance > 10).double().mean()),
    }
    draw_denominators(out / "mog_denominators.png")
    draw_samples(out / "mog_samples.png", drawn[:, UNIMODAL].double(), true, distance)
    far = result["unimodal"]
    section = Section(
        name="mog",
        title="Appendix: AQuaMaM with mixtures of Gaussians",
        rows=(
            Row(what="toy: mean log-likelihood", here=f"{result['log_likelihood']:.4f}", paper=f"{result['paper']['log_likelihood']}", ceiling="none"),
            Row(what="unimodal viewpoint: mean distance of samples (deg)", here=f"{far['mean_distance_deg']:.3f}", paper="often far"),
            Row(what="unimodal viewpoint: samples farther than 10 deg", here=f"{far['farther_than_10_deg']:.1%}"),
            Row(what="all viewpoints: mean distance to a mode (deg)", here=f"{result['mean_distance_deg']:.3f}"),
        ),
        text=(
            "The density has no ceiling: the Gaussians may become as narrow as they like, and the factor 2u / (u² - q²) grows without bound "
            "towards the edge of a component's range.",
            f"The rotation of the unimodal viewpoint turns by {far['angle_of_truth_deg']:.0f} degrees, close to such an edge (q_w near 0), where a small step "
            "in q is a large one in s; near 180 degrees opposite points of the ball are almost the same rotation.",
        ),
        reductions=tuple(result["reductions"]),
        figures=(
            Figure(file="mog_denominators.png", caption="The denominator |u² - q²| of the change of variables for u = 1 and u = 0.5: it vanishes at the ends of the range."),
            Figure(file="mog_samples.png", caption="Samples for the viewpoint with one rotation as rotation vectors, beside the truth, and their distances from it."),
        ),
    )  # fmt: skip
    return finish(out, section, result)


def draw_denominators(path: Path) -> Path:
    """|u^2 - q^2| over (-u, u) for u = 1 and 0.5."""
    with style():
        figure = plots.Figure(figsize=(9.2, 3.4))
        for axis, u, letter in zip(figure.subplots(1, 2), (1.0, 0.5), "ab"):
            q = np.linspace(-u, u, 401)
            axis.plot(q, np.abs(u**2 - q**2), color=BLUE, lw=2.2)
            axis.plot([-u, u], [0, 0], "o", color=ORANGE, clip_on=False, zorder=5)
            axis.annotate(
                "0: the factor $2u / (u^2 - q_c^2)$ is infinite here", (u, 0), (0.5, 0.1), textcoords="axes fraction",
                ha="center", color=ORANGE, fontsize=9.5, arrowprops={"arrowstyle": "-", "color": ORANGE, "lw": 0.8},
            )  # fmt: skip
            axis.set(xlim=(-u, u), ylim=(0, 1.08 * u**2), xlabel="$q_c$", ylabel="$|u^2 - q_c^2|$")
            axis.set_xticks([-u, -u / 2, 0, u / 2, u])
            axis.set_title(f"({letter}) u = {u:g}")
        return save_figure(figure, path)


def draw_samples(path: Path, drawn: Tensor, true: Tensor, distance: Tensor) -> Path:
    """The samples in the ball of rotation vectors, and how far they are."""
    with style():
        figure = plots.Figure(figsize=(10, 4.8))
        grid = figure.add_gridspec(1, 2, width_ratios=[1.1, 1])
        ball: Any = figure.add_subplot(grid[0], projection="3d")
        draw_ball(ball)
        ball.scatter(*torch.rad2deg(quat_to_rotvec(drawn)).T, s=7, color=BLUE, lw=0, alpha=0.5, depthshade=False)
        ball.scatter(*torch.rad2deg(quat_to_rotvec(true)), s=170, facecolors="none", edgecolors=ORANGE, linewidths=2.2, depthshade=False)  # fmt: skip
        ball.set_title(f"{len(drawn):,} samples (blue), the true rotation (orange ring)", y=0.98)
        axis = figure.add_subplot(grid[1])
        edges = np.geomspace(0.01, 180, 60)
        axis.hist(distance.clamp(0.01, 180).numpy(), edges.tolist(), color=BLUE)
        axis.axvline(float(distance.median()), color=BLACK, ls="--", lw=1.4)
        side: Any = {"ha": "right"} if float(distance.median()) > 1 else {"ha": "left"}
        axis.text(float(distance.median()), 1.01, f" median {float(distance.median()):.2f}° ", transform=axis.get_xaxis_transform(), **side)  # fmt: skip
        axis.set(xscale="log", xlim=(0.01, 180), xlabel="distance from the true rotation (deg)", ylabel="samples")
        axis.set_xticks([0.01, 0.1, 1, 10, 100], ["0.01", "0.1", "1", "10", "100"])
        axis.grid(axis="y", color=GREY, alpha=0.25, lw=0.6)
        return save_figure(figure, path)
