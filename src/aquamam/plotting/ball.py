"""The paper's Figure 7: rotation vectors in a ball of radius pi, coloured by log density."""

import math
import textwrap
from typing import Any

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from PIL import Image

from aquamam.geometry.rotations import LOG_UNIFORM
from aquamam.plotting import style
from aquamam.plotting.cloud import SAMPLE, TRUTH, UNIFORM, Cloud
from aquamam.plotting.style import ACCENT, FAINT, INK, MUTED, PAPER
from aquamam.rendering.known import KnownObject, axes_picture

SHAPES = {TRUTH: "*", SAMPLE: "o", UNIFORM: "D"}
ELEVATION, AZIMUTH = 18, -62  # of the view, in degrees


def ball(
    cloud: Cloud, *, image: Image.Image | None = None, known: KnownObject | None = None, title: str = ""
) -> Figure:
    """The ball with annotated points beside it, each as `number : log density` under the object in that pose.

    image: the input; known: the object, drawn in the annotated poses (its axes are drawn otherwise).
    """
    numbers = dict(enumerate(cloud.annotated(), start=0 if cloud.has_truth else 1))
    with style.drawing(11.6, 6.4) as figure:
        draw_ball(figure, (0.19, 0.1, 0.5, 0.9), cloud, numbers)
        _draw_side(figure, cloud, image, title)
        _draw_poses(figure, cloud, numbers, known)
        _draw_legend(figure, cloud)
    return figure


def _to_plot(v: np.ndarray) -> np.ndarray:
    """Camera coordinates (x right, y up, z towards the viewer) to matplotlib's, whose third axis points up."""
    return np.stack([v[..., 0], -v[..., 2], v[..., 1]], -1)


def draw_ball(figure: Figure, place: tuple[float, float, float, float], cloud: Cloud, numbers: dict[int, int]) -> None:
    """Outline, three great circles, axes, and the points, some of them with numbers (number -> point)."""
    # in an orthographic view the ball's outline is a circle
    axes: Any = figure.add_axes(place, projection="3d", computed_zorder=False, proj_type="ortho")
    axes.set_axis_off()
    axes.view_init(elev=ELEVATION, azim=AZIMUTH)
    axes.set_box_aspect((1, 1, 1), zoom=1.36)
    limits = (-1.02 * math.pi, 1.02 * math.pi)
    axes.set(xlim=limits, ylim=limits, zlim=limits)
    angle = np.linspace(0, 2 * math.pi, 181)
    circle = math.pi * np.stack([np.cos(angle), np.sin(angle), 0 * angle], -1)
    for permutation in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        axes.plot(*circle[:, permutation].T, color=MUTED, lw=0.6, alpha=0.4, zorder=1)
    e, a = math.radians(ELEVATION), math.radians(AZIMUTH)
    sight = np.array([math.cos(e) * math.cos(a), math.cos(e) * math.sin(a), math.sin(e)])
    across = np.array([-math.sin(a), math.cos(a), 0.0])
    outline = circle @ np.stack([across, np.cross(sight, across), sight])
    axes.plot(*outline.T, color=MUTED, lw=1.0, zorder=1)
    for axis, letter in enumerate("xyz"):
        end = _to_plot(math.pi * np.eye(3)[axis])
        axes.plot(*np.stack([-end, end], -1), color=MUTED, lw=0.6, alpha=0.55, zorder=1)
        axes.text(*(1.1 * end), f"{letter} 180°", color=MUTED, fontsize=8, ha="center", va="center", zorder=9)
    _draw_points(axes, cloud, numbers)


def _draw_points(axes: Any, cloud: Cloud, numbers: dict[int, int]) -> None:
    points, rgba = _to_plot(cloud.rotvec), style.density_colours(cloud.log_density)
    share = style.density_shares(cloud.log_density)
    order = np.argsort(cloud.log_density, kind="stable")  # likelier ones are drawn over the others

    def scatter(which: Any, shape: str, size: Any, zorder: int, **options: Any) -> None:
        axes.scatter(*points[which].T, marker=shape, s=size, zorder=zorder, depthshade=False, **options)

    for source, size in ((UNIFORM, 9.0), (SAMPLE, 15.0)):
        mine = order[cloud.source[order] == source]
        scatter(mine, SHAPES[source], size * (0.5 + share[mine]), 3, c=rgba[mine], linewidths=0)
    if cloud.has_truth:
        scatter([0], "*", 150, 5, color=ACCENT, edgecolors=PAPER)
    for number, i in numbers.items():
        scatter([i], "o", 70, 6, facecolors="none", edgecolors=INK, lw=0.9)
        label = axes.text(*(points[i] + [0, 0, 0.3]), str(number), fontsize=10, weight="bold", ha="center", zorder=9)
        label.set_path_effects([withStroke(linewidth=2.5, foreground=PAPER)])


def _draw_side(figure: Figure, cloud: Cloud, image: Image.Image | None, title: str) -> None:
    """The input image and the answer in words."""
    top = 0.93
    if image is not None:
        style.add_image(figure, image, (0.025, 0.6, 0.165, 0.3))
        figure.text(0.025, top, "input image", color=MUTED, fontsize=9)
        top = 0.54
    head, _, rest = cloud.answer.words.partition(": ")
    lines = textwrap.wrap(rest.replace(" %", "\u00a0%"), 30)
    x, y, z, w = cloud.answer.quaternion
    facts = f"prediction, xyzw\n({x:+.4f}, {y:+.4f},\n {z:+.4f}, {w:+.4f})\nln p = {cloud.answer.log_density:.2f}"
    if math.isfinite(cloud.answer.ceiling):
        facts += f"\nceiling {cloud.answer.ceiling:.2f}"
    small: dict[str, Any] = {"fontsize": 9, "va": "top", "linespacing": 1.45}
    figure.text(0.025, top, head.capitalize(), fontsize=12, weight="bold", va="top")
    figure.text(0.025, top - 0.05, "\n".join(lines), **small)
    figure.text(0.025, top - 0.085 - 0.036 * len(lines), facts, color=MUTED, **small)
    figure.text(0.44, 0.99, title, fontsize=11, ha="center", va="top")


def _draw_poses(figure: Figure, cloud: Cloud, numbers: dict[int, int], known: KnownObject | None) -> None:
    what = f"the {known.name}" if known is not None else "the object's axes"
    figure.text(0.7, 0.93, f"{what} in the numbered poses", color=MUTED, fontsize=9)
    for place, (number, i) in enumerate(numbers.items()):
        row, column = divmod(place, 2)
        axes = figure.add_axes((0.7 + 0.145 * column, 0.68 - 0.285 * row, 0.12, 0.215), xticks=[], yticks=[])
        axes.imshow(known.picture(cloud.q[i], 192) if known else axes_picture(cloud.q[i], 192))
        axes.spines[:].set(visible=True, color=FAINT)
        axes.set_xlabel(f"{number} : {cloud.log_density[i]:.2f}", fontsize=10, labelpad=2)


def _draw_legend(figure: Figure, cloud: Cloud) -> None:
    axes: Any = figure.add_axes((0.3, 0.075, 0.34, 0.022))
    scale = style.density_scale(cloud.log_density)
    beyond = cloud.log_density.max() > (scale.vmax or 0) + 1e-6  # always below, sometimes above
    colour_map = ScalarMappable(scale, style.density_map())
    bar = figure.colorbar(colour_map, cax=axes, orientation="horizontal", extend="both" if beyond else "min")
    bar.outline.set_visible(False)  # type: ignore[operator]
    bar.set_label("ln p(q): redder and more opaque is likelier")
    up: Any = {"transform": axes.get_xaxis_transform(), "color": MUTED}
    axes.plot([LOG_UNIFORM] * 2, [1, 1.9], lw=0.6, clip_on=False, **up)
    axes.text(LOG_UNIFORM, 1.9, " uniform", fontsize=8, va="center", **up)
    handles = [style.marker("0: the true rotation", "*", 11, ACCENT, markeredgewidth=0)] if cloud.has_truth else []
    for source, what in ((SAMPLE, "drawn from the posterior"), (UNIFORM, "uniform rotations")):
        if count := int((cloud.source == source).sum()):
            handles.append(style.marker(f"{count} {what}", SHAPES[source], markeredgewidth=0))
    figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.015, 0.015))
    meaning = "each point is axis times angle; opposite points\nof the surface are one rotation (180°)"
    figure.text(0.7, 0.03, meaning, color=MUTED, fontsize=8, linespacing=1.4)
