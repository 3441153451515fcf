r"""The hemisphere example (Figure 2 and Section A.1 of the paper): a density on the disk becomes one on the hemisphere.

Points uniform on the hemisphere have density $1/2\pi = 0.159$. Their (x, y) are modelled by a mixture of uniforms, one for each bin of a
square grid, and $p(x, y, z) = p(x, y)\, z$ by the Jacobian's diluting factor.
"""

import math
import time
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize
from matplotlib.figure import Figure

from aquamam.errors import InputError
from aquamam.reproduce.results import BLACK, GREY, ORANGE, save_figure, style
from aquamam.reproduce.sections import Figure as Picture
from aquamam.reproduce.sections import Row, Section, finish

TRUE_DENSITY = 1 / (2 * math.pi)
PAPER = {"mean_density": 0.154}


def random_points(count: int, random: np.random.Generator) -> np.ndarray:
    """Uniform points of the upper unit hemisphere, (count, 3)."""
    v = random.normal(size=(count, 3))
    v[:, 2] = np.abs(v[:, 2])
    return v / np.linalg.norm(v, axis=1, keepdims=True)


def bin_of(xy: np.ndarray, bins: int) -> tuple[np.ndarray, np.ndarray]:
    """Column and row of points in the grid of bins x bins squares over [-1, 1]^2."""
    place = np.clip(np.floor((xy + 1) / 2 * bins).astype(int), 0, bins - 1)
    return place[:, 0], place[:, 1]


def cell_areas(bins: int) -> np.ndarray:
    """Area of each square of the grid inside the unit disk, (bins, bins)."""
    edges = np.linspace(-1, 1, bins + 1)
    x, y = np.abs(edges)[:, None], np.abs(edges)[None, :]
    # [0, x] x [0, y]: a rectangle up to where the circle comes down to y, and the part under the arc beyond
    turn = np.minimum(x, np.sqrt(1 - y**2))
    corner = turn * y + _under_arc(x) - _under_arc(turn)
    corner = corner * np.sign(edges)[:, None] * np.sign(edges)[None, :]
    return np.maximum(np.diff(np.diff(corner, axis=0), axis=1), 0)


def _under_arc(x: np.ndarray) -> np.ndarray:
    r"""$\int_0^x \sqrt{1 - t^2}\, dt$."""
    return (x * np.sqrt(1 - x**2) + np.arcsin(x)) / 2


def run(out: Path, *, seed: int = 0, points: int = 500_000, bins: int = 200, shown: int = 1000) -> dict[str, Any]:
    """Fit the mixture to points, evaluate it at fresh ones, draw the figure; returns what OUT/hemisphere.json holds."""
    if min(points, bins, shown) < 1:
        raise InputError(f"points, bins and shown must be positive, got {points}, {bins} and {shown}.")
    started = time.monotonic()
    random = np.random.default_rng(seed)
    counts = np.zeros((bins, bins))
    np.add.at(counts, bin_of(random_points(points, random)[:, :2], bins), 1)
    probability = counts / points

    fresh = random_points(shown, random)
    cell = bin_of(fresh[:, :2], bins)
    whole = (2 / bins) ** 2
    areas = cell_areas(bins)
    density = probability[cell] / whole * fresh[:, 2]
    cut = probability[cell] / areas[cell] * fresh[:, 2]
    result = {
        "mean_density": float(density.mean()),
        "standard_error": float(density.std() / math.sqrt(shown)),
        "true_density": TRUE_DENSITY,
        # E[p z] = (1 / 2 pi) sum P A / w^2: a bin that the rim cuts spreads its probability over its part outside the disk too
        "expected_mean_density": float(TRUE_DENSITY * (probability * areas).sum() / whole),
        "mean_density_cut_bins": float(cut.mean()),
        "points": points,
        "bins": bins,
        "shown": shown,
        "seed": seed,
        "seconds": time.monotonic() - started,
        "paper": PAPER,
    }
    draw(out / "hemisphere.png", fresh, density)
    section = Section(
        name="hemisphere",
        title="Figure 2: a density on the disk becomes one on the hemisphere",
        rows=(
            Row(what=f"mean density of {shown:,} points, whole bins", here=f"{result['mean_density']:.3f}", paper=f"{PAPER['mean_density']}", ceiling=f"expected {result['expected_mean_density']:.3f}"),
            Row(what="bins cut at the rim", here=f"{result['mean_density_cut_bins']:.3f}", ceiling=f"truth {TRUE_DENSITY:.3f}"),
            Row(what="truth, 1 / 2 pi", here=f"{TRUE_DENSITY:.3f}", paper=f"{TRUE_DENSITY:.3f}"),
        ),
        text=("A bin that the rim cuts spreads its probability over its part outside the disk too, which explains the paper's 0.154.",),
        figures=(Picture(file="hemisphere.png", caption="Points uniform on the hemisphere, projected onto the disk, and the densities that the mixture gives them."),),
    )  # fmt: skip
    return finish(out, section, result)


def draw(path: Path, points: np.ndarray, density: np.ndarray) -> Path:
    """Three panels: points on the hemisphere, on the disk, and their densities."""
    heights = Normalize(0, 1)
    colours: Any = {"c": points[:, 2], "cmap": "viridis", "norm": heights}
    with style():
        figure = Figure(figsize=(12, 4))
        figure.set_layout_engine("constrained", wspace=0.07)
        grid = figure.add_gridspec(1, 3, width_ratios=[1.2, 1, 1.3])
        ball: Any = figure.add_subplot(grid[0], projection="3d")
        disk, scatter = figure.add_subplot(grid[1]), figure.add_subplot(grid[2])

        ball.scatter(*points.T, s=9, depthshade=False, lw=0, **colours)
        ball.set_box_aspect((1, 1, 0.5), zoom=1.1)
        ball.view_init(28, -55)
        ball.set(xlim=(-1, 1), ylim=(-1, 1), zlim=(0, 1), xlabel="x", ylabel="y", zlabel="z")
        ball.set(xticks=[-1, 0, 1], yticks=[-1, 0, 1], zticks=[0, 1])
        ball.zaxis.labelpad = -6
        ball.set_title("(a) uniform on the hemisphere")

        disk.scatter(points[:, 0], points[:, 1], s=9, lw=0, **colours)
        turn = np.linspace(0, 2 * np.pi, 200)
        disk.plot(np.cos(turn), np.sin(turn), color=GREY, lw=0.8)
        disk.set(aspect="equal", xlabel="x", ylabel="y", xticks=[-1, 0, 1], yticks=[-1, 0, 1])
        disk.set_title("(b) projected onto the disk")

        scatter.scatter(np.arange(len(density)), density, s=9, lw=0, **colours)
        mean = float(density.mean())
        scatter.axhline(TRUE_DENSITY, color=ORANGE, lw=2.2, label=rf"true density $1/2\pi$ = {TRUE_DENSITY:.3f}")
        scatter.axhline(mean, color=BLACK, lw=1.6, ls="--", label=rf"mean $\mu$ = {mean:.3f}")
        scatter.set(xlabel="point", ylabel="p(x, y, z)", ylim=(0, 1.4 * density.max() + 1e-9), xlim=(0, len(density)))
        scatter.legend(loc="upper left", fontsize=10)
        scatter.set_title("(c) estimated density")
        figure.colorbar(ScalarMappable(heights, "viridis"), ax=scatter, label="height z of the point")
        return save_figure(figure, path)
