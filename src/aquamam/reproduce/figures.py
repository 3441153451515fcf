r"""Figures 1 to 3 of the paper, which need no trained model; each returns what OUT/NAME.json holds.

- Figure 1, `unimodal`: the likeliest Bingham distribution for two rotations peaks in the middle.
- Figure 2, `hemisphere`: uniforms on the disk become a density on the hemisphere, $p(x, y, z) = p(x, y)\, z$.
- Figure 3, `constraint`: given q_x, which bins of q_y are legal, which are not, and which one is cut.
"""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.patches import Patch
from torch import Tensor

from aquamam.baselines.bingham import Bingham, BinghamConfig, BinghamMixture
from aquamam.geometry.cells import Cells
from aquamam.geometry.rotations import chordal_mean, geodesic_angle, multiply, rotvec_to_quat, slerp
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid
from aquamam.reproduce.fit_pairs import PLAIN, Fit, Pairs
from aquamam.reproduce.report import BLACK, BLUE, GREY, ORANGE, drawing, finish

# --- Figure 1 ---------------------------------------------------------------------------------------------------------


def two_rotations() -> Float[Tensor, "2 4"]:
    """Two poses of the die, 110 degrees apart, that show other faces than their middle does."""
    first = rotvec_to_quat(torch.tensor([0.45, -0.75, 0.25], dtype=torch.float64))
    axis = torch.tensor([0.9, 0.35, -0.25], dtype=torch.float64)
    return torch.stack([first, multiply(rotvec_to_quat(axis / axis.norm() * math.radians(110)), first)])


def fit_bingham(q: Float[Tensor, "n 4"], steps: int, seed: int) -> BinghamMixture:
    """The likeliest Bingham distribution by Adam."""
    torch.manual_seed(seed)
    model = Bingham(BinghamConfig(encoder="category", categories=1, category_features=1))
    Fit(model, Pairs.uniform([q]), replace(PLAIN, steps=steps, lr=0.01, beta2=0.99, seed=seed)).run("unimodal")
    with torch.no_grad():
        return model.posterior(torch.tensor([0]))


def unimodal(out: Path, *, seed: int = 0, steps: int = 600) -> dict[str, Any]:
    """Fit; draw four dice, and the density along the way between the two rotations."""
    q = two_rotations()
    posterior = fit_bingham(q, steps, seed)
    estimate = posterior.mode[0].double()
    log_p = posterior.log_prob(torch.stack([*q, estimate])[:, None])[:, 0].tolist()
    result = {
        **{"rotations_xyzw": q.tolist(), "estimate_xyzw": estimate.tolist()},
        "angle_from_estimate_deg": torch.rad2deg(geodesic_angle(q, estimate)).tolist(),
        "angle_between_deg": math.degrees(geodesic_angle(q[0], q[1])),
        "angle_to_closed_form_deg": math.degrees(geodesic_angle(estimate, chordal_mean(q))),
        **{"log_density_of_rotations": log_p[:2], "log_density_of_estimate": log_p[2]},
        **{"concentrations": sorted((-posterior.z[0, 0, :3]).tolist()), "steps": steps, "seed": seed},
    }
    identity = torch.tensor([0.0, 0, 0, 1], dtype=torch.float64)
    pictures = render(solid("die").mesh, torch.stack([identity, *q, estimate]).numpy(), RenderSettings(size=320))
    names = ("$R_0$: the identity", "$R_1$: in the data", "$R_2$: in the data", r"$\widehat{R}$: the estimate")
    place = torch.linspace(-0.35, 1.35, 241, dtype=torch.float64)
    density = posterior.log_prob(slerp(q[0], q[1], place)[:, None])[:, 0].exp()
    with drawing(out / "unimodal.png", 11.0, 5.4) as figure:
        grid = figure.add_gridspec(2, 4, height_ratios=[1.55, 1])
        for column, (name, picture) in enumerate(zip(names, pictures)):
            axis = figure.add_subplot(grid[0, column], xticks=[], yticks=[])
            axis.imshow(picture)
            axis.set_title(name, color=ORANGE if column == 3 else BLACK)
            axis.spines[:].set(visible=True, color=ORANGE if column == 3 else GREY)
        axis = figure.add_subplot(grid[1, :])
        axis.fill_between(place, density, color=BLUE, alpha=0.3)
        for x, name, colour in ((0, "$R_1$", BLACK), (1, "$R_2$", BLACK), (0.5, r"$\widehat{R}$", ORANGE)):
            axis.axvline(x, color=colour, ls="--" if x != 0.5 else "-", lw=1.4)
            axis.text(x + 0.012, float(density.max()) * 1.02, name, color=colour, va="bottom")
        axis.set(xlim=(-0.35, 1.35), ylim=(0, float(density.max()) * 1.22), ylabel="fitted density")
        axis.set(xticks=[0, 0.5, 1], xlabel="place on the shortest way from $R_1$ to $R_2$")
    return finish(out, "unimodal", result)


# --- Figure 2 ---------------------------------------------------------------------------------------------------------

TRUE_DENSITY = 1 / (2 * math.pi)  # of the uniform distribution on the hemisphere


def random_points(count: int, random: np.random.Generator) -> np.ndarray:
    """Uniform on the upper unit hemisphere, (count, 3)."""
    v = random.normal(size=(count, 3))
    v[:, 2] = np.abs(v[:, 2])
    return v / np.linalg.norm(v, axis=1, keepdims=True)


def cell_areas(bins: int) -> np.ndarray:
    """Area of each square of the grid inside the unit disk, (bins, bins)."""

    def under_arc(x: np.ndarray) -> np.ndarray:  # the integral of sqrt(1 - t^2) from 0 to x
        return (x * np.sqrt(1 - x**2) + np.arcsin(x)) / 2

    edges = np.linspace(-1, 1, bins + 1)
    x, y = np.abs(edges)[:, None], np.abs(edges)[None, :]
    # [0, x] x [0, y]: a rectangle up to where the circle comes down to y, and the part under the arc beyond
    bend = np.minimum(x, np.sqrt(1 - y**2))
    corner = (bend * y + under_arc(x) - under_arc(bend)) * np.sign(edges)[:, None] * np.sign(edges)[None, :]
    return np.maximum(np.diff(np.diff(corner, axis=0), axis=1), 0)


def hemisphere(out: Path, *, seed: int = 0) -> dict[str, Any]:
    """Fit the mixture to points, evaluate it at fresh ones, draw the figure; returns what OUT/hemisphere.json holds."""
    points, bins, shown = 500_000, 200, 1000
    random, areas, whole = np.random.default_rng(seed), cell_areas(bins), (2 / bins) ** 2
    x, y, _ = random_points(points, random).T
    counts, edges, _ = np.histogram2d(x, y, bins, [[-1, 1], [-1, 1]])
    fresh = random_points(shown, random)
    cell = tuple(np.searchsorted(edges, fresh[:, :2].T, side="right") - 1)
    density = counts[cell] / points / whole * fresh[:, 2]
    draw_hemisphere(out / "hemisphere.png", fresh, density)
    result = {
        "mean_density": float(density.mean()),
        "standard_error": float(density.std() / math.sqrt(shown)),
        "true_density": TRUE_DENSITY,
        # E[p z] = (1 / 2 pi) sum P A / w^2: a bin at the rim has probability outside the disk, too
        "expected_mean_density": float(TRUE_DENSITY * (counts / points * areas).sum() / whole),
        "mean_density_cut_bins": float((density * whole / areas[cell]).mean()),
        **{"points": points, "bins": bins, "shown": shown, "seed": seed},
    }
    return finish(out, "hemisphere", result)


def draw_hemisphere(path: Path, points: np.ndarray, density: np.ndarray) -> None:
    """Three panels: points on the hemisphere, on the disk, and their densities."""
    dots: Any = {"c": points[:, 2], "cmap": "viridis", "vmin": 0, "vmax": 1, "s": 9, "lw": 0}
    with drawing(path, 12.0, 4.0) as figure:
        figure.set_layout_engine("constrained", wspace=0.07)
        grid = figure.add_gridspec(1, 3, width_ratios=[1.2, 1, 1.3])
        ball: Any = figure.add_subplot(grid[0], projection="3d")
        ball.scatter(*points.T, depthshade=False, **dots)
        ball.set_box_aspect((1, 1, 0.5), zoom=1.1)
        ball.view_init(28, -55)
        ball.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(0, 1), xlabel="x", ylabel="y", zlabel="z")
        ball.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], zticks=[0, 1], title="(a) uniform on the hemisphere")
        ball.zaxis.labelpad = -6
        disk = figure.add_subplot(grid[1], title="(b) projected onto the disk")
        disk.scatter(points[:, 0], points[:, 1], **dots)
        disk.set(aspect="equal", xlabel="x", ylabel="y", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        axis = figure.add_subplot(grid[2], title="(c) estimated density")
        shown = axis.scatter(np.arange(len(density)), density, **dots)
        mean = float(density.mean())
        axis.axhline(TRUE_DENSITY, color=ORANGE, lw=2.2, label=rf"true density $1/2\pi$ = {TRUE_DENSITY:.3f}")
        axis.axhline(mean, color=BLACK, lw=1.6, ls="--", label=rf"mean $\mu$ = {mean:.3f}")
        axis.set(xlabel="point", ylabel="p(x, y, z)", ylim=(0, 1.4 * density.max() + 1e-9), xlim=(0, len(density)))
        axis.legend(loc="upper left", fontsize=10)
        figure.colorbar(shown, ax=axis, label="height z of the point")


# --- Figure 3 ---------------------------------------------------------------------------------------------------------

KINDS = {
    "legal": (BLUE, "legal: $U(a_i, b_i)$"),
    "cut": (ORANGE, r"cut: $U(a_i, \hat b_i)$, $\hat b_i = \sqrt{1 - q_x^2}$; dotted: uncut"),
    "illegal": ("#e3e5e9", "illegal: $a_i$ is beyond the bound"),
}


def bins_of_next(first: float, bins: int) -> list[dict[str, Any]]:
    """The non-negative bins [a, b) of q_y given q_x: their kind, their (cut) width, and whether the network masks them.

    The mask is by inner edges (Section A.2): it never forbids a bin that some q_x of the first bin allows.
    """
    cells, room = Cells("hemisphere", bins, "paper"), math.sqrt(1 - first**2)
    q = torch.tensor([first, 0.0, 0.0, room], dtype=torch.float64)
    legal = cells.legal(cells.locate(cells.chart.split(q))[:1])
    rows = []
    for i in range(-(-bins // 2), bins):
        a, b = 2 * i / bins - 1, 2 * (i + 1) / bins - 1
        kind = "illegal" if a >= room else "cut" if b > room else "legal"
        width = max(0.0, min(b, room) - a)
        rows.append({"lower": a, "upper": b, "kind": kind, "width": width, "masked": not legal[i]})
    return rows


def constraint(out: Path) -> dict[str, Any]:
    """The unit circle with the bins on the line q_x, and the bins' uniform densities."""
    first, bins = 0.7, 10
    rows, room = bins_of_next(first, bins), math.sqrt(1 - first**2)
    top = max(1 / row["width"] for row in rows if row["width"])
    with drawing(out / "constraint.png", 11.0, 4.4) as figure:
        left, right = figure.subplots(1, 2, width_ratios=[1, 1.9])
        angle = np.linspace(0, np.pi / 2, 200)
        left.plot(np.cos(angle), np.sin(angle), color=BLACK, lw=1.6)
        left.plot([0, first], [room, room], color=ORANGE, ls="--", lw=1.4)
        left.text(0.02, room + 0.015, f"$\\sqrt{{1 - q_x^2}}$ = {room:.3f}", color=ORANGE)
        left.set(aspect="equal", xlim=(0, 1.05), ylim=(0, 1.02), xlabel="$q_x$", ylabel="$q_y$", xticks=[0, first, 1])
        left.set_title("(a) what the unit norm leaves")
        for row in rows:
            a, width, illegal = row["lower"], row["upper"] - row["lower"], row["kind"] == "illegal"
            look: Any = {"color": KINDS[row["kind"]][0], "edgecolor": "white", "hatch": "////" if illegal else None}
            left.bar(first, width, 0.044, bottom=a, **look)
            height, wide = (1.42 * top, width) if illegal else (1 / row["width"], row["width"])
            right.bar(a, height, wide, align="edge", **look)
            if illegal:
                right.text(a + width / 2, 0.7 * top, r"$\pi_i = 0$", rotation=90, ha="center", va="center", color=GREY)
            elif row["kind"] == "cut":
                right.bar(a, 1 / width, width, align="edge", fill=False, edgecolor=BLACK, ls=":", lw=1.3)
        right.axvline(room, color=ORANGE, ls="--", lw=1.6)
        right.set(xlim=(0, 1), ylim=(0, 1.42 * top), xlabel="$q_y$", ylabel="density of a bin's uniform distribution")
        right.set_title("(b) the mixture's components")
        handles = [Patch(color=colour, label=label) for colour, label in KINDS.values()]
        right.legend(handles=handles, loc="upper left", fontsize=9.5)
    result = {
        **{"q_x": first, "room": room, "bins": bins, "rows": rows, "width": 2 / bins},
        "counts": {kind: sum(row["kind"] == kind for row in rows) for kind in KINDS},
        "cut_width": sum(row["width"] for row in rows if row["kind"] == "cut"),
        "masked": sum(row["masked"] for row in rows),
    }
    return finish(out, "constraint", result)
