"""The paper's Figure 7: rotation vectors in a ball of radius pi, coloured by log density."""

import math
import textwrap
from typing import Any, Literal

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patheffects import withStroke
from PIL import Image

from aquamam.geometry.rotations import LOG_UNIFORM
from aquamam.plotting.cloud import SAMPLE, TRUTH, UNIFORM, Cloud
from aquamam.plotting.style import Theme, density_colours, density_map, density_scale, get_theme, new_figure
from aquamam.rendering.known import KnownObject, axes_picture

MARKERS = {TRUTH: "*", SAMPLE: "o", UNIFORM: "D"}


def ball(
    cloud: Cloud,
    *,
    image: Image.Image | None = None,
    known: KnownObject | None = None,
    title: str = "",
    theme: str = "light",
    elevation: float | int = 18,
    azimuth: float | int = -62,
) -> Figure:
    """The ball with annotated points beside it, each as `number : log density` under the object in that pose.

    image: the input; known: the object, drawn in the annotated poses (its axes are drawn otherwise).
    """
    colours = get_theme(theme)
    figure = new_figure(colours, 11.6, 6.4)
    numbers = cloud.annotated(6)
    _draw_ball(figure, cloud, numbers, theme, elevation, azimuth)
    _draw_side(figure, cloud, image, title, colours)
    _draw_poses(figure, cloud, numbers, known, colours)
    _draw_legend(figure, cloud, colours)
    return figure


def _to_plot(v: np.ndarray) -> np.ndarray:
    """Camera coordinates (x right, y up, z towards the viewer) to matplotlib's, whose third axis points up."""
    return np.stack([v[..., 0], -v[..., 2], v[..., 1]], -1)


def _draw_ball(
    figure: Figure, cloud: Cloud, numbers: list[int], theme: str, elevation: float | int, azimuth: float | int
) -> None:
    colours = get_theme(theme)
    axes: Any = figure.add_axes((0.19, 0.1, 0.5, 0.9), projection="3d", computed_zorder=False)
    axes.set_facecolor(colours.paper)
    axes.set_axis_off()
    axes.set_proj_type("ortho")  # the ball's outline is then a circle
    axes.view_init(elev=elevation, azim=azimuth)
    axes.set_box_aspect((1, 1, 1), zoom=1.36)
    limit = math.pi * 1.02
    axes.set(xlim=(-limit, limit), ylim=(-limit, limit), zlim=(-limit, limit))
    turn = np.linspace(0, 2 * math.pi, 181)
    circle = math.pi * np.stack([np.cos(turn), np.sin(turn), 0 * turn], -1)
    for permutation in ((0, 1, 2), (1, 2, 0), (2, 0, 1)):
        axes.plot(*circle[:, permutation].T, color=colours.muted, lw=0.6, alpha=0.4, zorder=1)
    axes.plot(*(circle @ _facing(elevation, azimuth)).T, color=colours.muted, lw=1.0, zorder=1)  # the outline
    for axis, letter in enumerate("xyz"):
        end = _to_plot(math.pi * np.eye(3)[axis])
        axes.plot(*np.stack([-end, end], -1), color=colours.muted, lw=0.6, alpha=0.55, zorder=1)
        axes.text(*(1.1 * end), f"{letter} 180°", color=colours.muted, fontsize=8, ha="center", va="center", zorder=9)
    points, rgba = _to_plot(cloud.rotvec), density_colours(cloud.log_density, theme)
    share = np.asarray(density_scale(cloud.log_density)(cloud.log_density), dtype=np.float64)
    order = np.argsort(cloud.log_density, kind="stable")  # likelier ones are drawn over the others
    for source, size in ((UNIFORM, 9.0), (SAMPLE, 15.0)):
        mine = order[cloud.source[order] == source]
        axes.scatter(
            *points[mine].T, c=rgba[mine], s=size * (0.5 + share[mine]), marker=MARKERS[source], linewidths=0,
            depthshade=False, zorder=3,
        )  # fmt: skip
    if cloud.has_truth:
        axes.scatter(
            *points[:1].T, marker="*", s=150, color=colours.accent, edgecolors=colours.paper, zorder=5, depthshade=False
        )
    for number, i in enumerate(numbers, start=0 if cloud.has_truth else 1):
        axes.scatter(
            *points[i : i + 1].T, marker="o", s=70, facecolors="none", edgecolors=colours.ink, lw=0.9, zorder=6,
            depthshade=False,
        )  # fmt: skip
        label = axes.text(
            *(points[i] + [0, 0, 0.3]),
            str(number),
            color=colours.ink,
            fontsize=10,
            weight="bold",
            ha="center",
            zorder=9,
        )
        label.set_path_effects([withStroke(linewidth=2.5, foreground=colours.paper)])


def _facing(elevation: float | int, azimuth: float | int) -> np.ndarray:
    """Rows: two directions across the line of sight, and the one towards the viewer, in matplotlib's axes."""
    e, a = math.radians(elevation), math.radians(azimuth)
    sight = np.array([math.cos(e) * math.cos(a), math.cos(e) * math.sin(a), math.sin(e)])
    across = np.array([-math.sin(a), math.cos(a), 0.0])
    return np.stack([across, np.cross(sight, across), sight])


def _draw_side(figure: Figure, cloud: Cloud, image: Image.Image | None, title: str, colours: Theme) -> None:
    """The input image and the answer in words."""
    top = 0.93
    if image is not None:
        axes = figure.add_axes((0.025, 0.6, 0.165, 0.3))
        axes.imshow(np.asarray(image))
        axes.set_axis_off()
        figure.text(0.025, top, "input image", color=colours.muted, fontsize=9)
        top = 0.54
    words = cloud.words
    head, _, rest = words.partition(": ")
    lines = [head.capitalize(), *textwrap.wrap(rest.replace(" %", "\u00a0%"), 30)]
    figure.text(0.025, top, lines[0], color=colours.ink, fontsize=12, weight="bold", va="top")
    figure.text(0.025, top - 0.05, "\n".join(lines[1:]), color=colours.ink, fontsize=9, va="top", linespacing=1.45)
    below = top - 0.05 - 0.036 * (len(lines) - 1) - 0.035
    x, y, z, w = cloud.answer
    facts = [
        "prediction, xyzw",
        f"({x:+.4f}, {y:+.4f},",
        f" {z:+.4f}, {w:+.4f})",
        f"ln p = {cloud.answer_log_density:.2f}",
    ]
    if math.isfinite(cloud.ceiling):
        facts.append(f"ceiling {cloud.ceiling:.2f}")
    figure.text(0.025, below, "\n".join(facts), color=colours.muted, fontsize=9, va="top", linespacing=1.45)
    if title:
        figure.text(0.44, 0.99, title, color=colours.ink, fontsize=11, ha="center", va="top")


def _draw_poses(figure: Figure, cloud: Cloud, numbers: list[int], known: KnownObject | None, colours: Theme) -> None:
    what = f"the {known.name}" if known is not None else "the object's axes"
    figure.text(0.7, 0.93, f"{what} in the numbered poses", color=colours.muted, fontsize=9)
    for place, i in enumerate(numbers):
        row, column = divmod(place, 2)
        axes = figure.add_axes((0.7 + 0.145 * column, 0.68 - 0.285 * row, 0.12, 0.215))
        picture = known.picture(cloud.q[i], 192) if known else axes_picture(cloud.q[i], 192, colours.paper, colours.ink)
        axes.imshow(picture)
        axes.set(xticks=[], yticks=[])
        for spine in axes.spines.values():
            spine.set_color(colours.faint)
        number = place if cloud.has_truth else place + 1
        axes.set_xlabel(f"{number} : {cloud.log_density[i]:.2f}", color=colours.ink, fontsize=10, labelpad=2)


def _beyond(cloud: Cloud) -> Literal["min", "both"]:
    """Where points lie beyond the colours: always below, sometimes above."""
    return "both" if cloud.log_density.max() > (density_scale(cloud.log_density).vmax or 0) + 1e-6 else "min"


def _draw_legend(figure: Figure, cloud: Cloud, colours: Theme) -> None:
    axes = figure.add_axes((0.3, 0.075, 0.34, 0.022))
    scale = density_scale(cloud.log_density)
    bar = figure.colorbar(
        ScalarMappable(scale, density_map(colours)), cax=axes, orientation="horizontal", extend=_beyond(cloud)
    )
    bar.outline.set_visible(False)  # type: ignore[operator]
    axes.tick_params(colors=colours.muted, labelsize=8)
    bar.set_label("ln p(q): redder and more opaque is likelier", color=colours.ink, fontsize=9)
    axes.annotate(
        "uniform", (LOG_UNIFORM, 1), (LOG_UNIFORM, 1.9), xycoords=axes.get_xaxis_transform(), ha="left",
        textcoords=axes.get_xaxis_transform(), fontsize=8, color=colours.muted, annotation_clip=False,
        arrowprops={"arrowstyle": "-", "color": colours.muted, "lw": 0.6, "shrinkA": 0, "shrinkB": 0},
    )  # fmt: skip
    counts = {source: int((cloud.source == source).sum()) for source in MARKERS}
    texts = {
        TRUTH: "0: the true rotation",
        SAMPLE: f"{counts[SAMPLE]} drawn from the posterior",
        UNIFORM: f"{counts[UNIFORM]} uniform rotations",
    }
    handles = [
        Line2D(
            [], [], linestyle="", marker=MARKERS[source], markersize=11 if source == TRUTH else 5, label=texts[source],
            color=colours.accent if source == TRUTH else colours.muted, markeredgewidth=0,
        )
        for source in MARKERS
        if counts[source]
    ]  # fmt: skip
    figure.legend(
        handles=handles, loc="lower left", bbox_to_anchor=(0.015, 0.015), frameon=False, fontsize=8.5, labelcolor=colours.ink,
        handletextpad=0.4,
    )  # fmt: skip
    figure.text(
        0.7, 0.03, "each point is axis times angle; opposite points\nof the surface are one rotation (180°)",
        color=colours.muted, fontsize=8, linespacing=1.4,
    )  # fmt: skip
