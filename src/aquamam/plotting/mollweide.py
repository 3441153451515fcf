"""IPDF's view of SO(3): where one of the object's axes points, on a Mollweide map of the sphere, and the tilt about it as a colour."""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from PIL import Image

from aquamam.errors import InputError
from aquamam.geometry.rotations import rotate
from aquamam.plotting.cloud import SAMPLE, TRUTH, Cloud
from aquamam.plotting.style import Theme, density_scale, get_theme, new_figure

# A cyclic map, blue - violet - orange - green and back; colour-blind readers have the needles, which show the same angle.
TILT_COLOURS = {
    "light": ("#2b5fb8", "#8a3fa0", "#c8432b", "#b27a00", "#3f8f3a", "#0f8f9c", "#2b5fb8"),
    "dark": ("#6f9cf2", "#c583dd", "#ff8a6b", "#f0b93c", "#83cf78", "#4ecbd6", "#6f9cf2"),
}


def mollweide(
    cloud: Cloud,
    *,
    axis: str = "z",
    image: Image.Image | None = None,
    title: str = "",
    theme: str = "light",
) -> Figure:
    """The samples of a posterior: each point is the direction of the object's axis in the camera's frame, its colour and needle the
    tilt about that direction, its size the density.

    The map's centre points to the viewer, its top up, its right-hand side right, and its rim away from the viewer.
    """
    colours = get_theme(theme)
    if axis not in ("x", "y", "z"):
        raise InputError(f"axis must be x, y or z, got {axis!r}.")
    figure = new_figure(colours, 9.4, 6.0)
    axes: Any = figure.add_axes((0.04, 0.17, 0.92, 0.68), projection="mollweide")
    axes.set_facecolor(colours.paper)
    axes.grid(color=colours.muted, lw=0.5, alpha=0.35)
    axes.set(xticklabels=[], yticklabels=[])
    axes.spines["geo"].set_color(colours.muted)
    wheel = LinearSegmentedColormap.from_list("tilt", TILT_COLOURS[theme])
    shown = np.flatnonzero(cloud.source == SAMPLE)
    shown = shown[np.argsort(cloud.log_density[shown], kind="stable")]
    longitude, latitude, tilt = directions(cloud.q, axis)
    share = np.asarray(density_scale(cloud.log_density)(cloud.log_density), dtype=np.float64)
    rgba = np.asarray(wheel(tilt / (2 * math.pi) % 1), dtype=np.float64)
    rgba[:, 3] = 0.15 + 0.85 * share
    axes.scatter(longitude[shown], latitude[shown], c=rgba[shown], s=3 + 15 * share[shown], linewidths=0, zorder=3)
    axes.add_collection(_needles(longitude[shown], latitude[shown], tilt[shown], rgba[shown]))
    if cloud.has_truth:
        axes.scatter(longitude[:1], latitude[:1], s=260, facecolors="none", edgecolors=colours.paper, lw=4, zorder=5)
        axes.scatter(
            longitude[:1],
            latitude[:1],
            s=260,
            facecolors="none",
            edgecolors=wheel(tilt[:1] / (2 * math.pi) % 1),
            lw=2.2,
            zorder=6,
        )
    for text, at in {
        "to the viewer": (0, -0.6),
        "up": (0, 1.45),
        "down": (0, -1.45),
        "right": (math.pi / 2, -0.06),
        "left": (-math.pi / 2, -0.06),
    }.items():
        axes.text(*at, text, color=colours.muted, fontsize=8, ha="center", va="center", zorder=2)
    _legend(figure, cloud, wheel, axis, colours)
    words = cloud.words
    figure.text(
        0.04,
        0.955,
        title or f"Where the object's {axis} axis points",
        color=colours.ink,
        fontsize=12,
        va="top",
        weight="bold",
    )
    figure.text(0.04, 0.9, words[0].upper() + words[1:], color=colours.ink, fontsize=9.5, va="top")
    if image is not None:
        picture = figure.add_axes((0.855, 0.79, 0.12, 0.19))
        picture.imshow(np.asarray(image))
        picture.set_axis_off()
    return figure


def directions(
    q: Float64[np.ndarray, "n 4"], axis: str
) -> tuple[Float64[np.ndarray, " n"], Float64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """Longitude, latitude and tilt in radians. The tilt is the twist t of q = swing times twist: what is left of q when the axis is
    brought to its direction on the shortest way, $t = 2 atan2(q_{xyz} · a, q_w)$."""
    a = np.eye(3)["xyz".index(axis)]
    x, y, z = rotate(torch.from_numpy(q), torch.from_numpy(a)).numpy().T
    tilt = 2 * np.arctan2(q[:, :3] @ a, q[:, 3])
    return np.arctan2(x, z), np.arcsin(np.clip(y, -1, 1)), tilt


def _needles(longitude: np.ndarray, latitude: np.ndarray, tilt: np.ndarray, rgba: np.ndarray) -> LineCollection:
    """A short line from each point, pointing up for tilt 0 and turning anticlockwise."""
    length = 0.15
    stretch = 1 / np.clip(np.cos(latitude), 0.2, None)  # of longitudes near the poles
    tip = np.stack([longitude - length * np.sin(tilt) * stretch, latitude + length * np.cos(tilt)], -1)
    tip[:, 0] = np.clip(tip[:, 0], -math.pi, math.pi)
    tip[:, 1] = np.clip(tip[:, 1], -math.pi / 2, math.pi / 2)
    return LineCollection(
        list(np.stack([np.stack([longitude, latitude], -1), tip], 1)), colors=rgba, linewidths=0.6, zorder=3
    )


def _legend(figure: Figure, cloud: Cloud, wheel: LinearSegmentedColormap, axis: str, colours: Theme) -> None:
    dial: Any = figure.add_axes((0.045, 0.025, 0.13, 0.17), projection="polar")
    turn = np.linspace(0, 2 * math.pi, 121)
    dial.pcolormesh(turn, [0.55, 1], turn[None, :-1], cmap=wheel, shading="flat")
    dial.set_theta_zero_location("N")
    dial.set(yticks=[], ylim=(0, 1))
    dial.set_xticks(
        [0, math.pi / 2, math.pi, 1.5 * math.pi], ["0°", "90°", "180°", "270°"], fontsize=7, color=colours.muted
    )
    dial.tick_params(pad=-3)
    dial.set_facecolor(colours.paper)
    dial.grid(visible=False)
    dial.spines["polar"].set_visible(False)
    figure.text(0.205, 0.12, f"colour and needle: tilt about the {axis} axis", color=colours.ink, fontsize=9)
    figure.text(0.205, 0.08, "size and opacity: density", color=colours.ink, fontsize=9)
    handles = [
        Line2D(
            [],
            [],
            linestyle="",
            marker="o",
            markersize=5,
            color=colours.muted,
            label=f"{int((cloud.source == SAMPLE).sum())} drawn from the posterior",
        )
    ]
    if (cloud.source == TRUTH).any():
        ring = Line2D(
            [],
            [],
            linestyle="",
            marker="o",
            markersize=10,
            markerfacecolor="none",
            markeredgewidth=2,
            color=colours.muted,
            label="the true rotation",
        )
        handles.append(ring)
    figure.legend(
        handles=handles,
        loc="lower right",
        bbox_to_anchor=(0.98, 0.03),
        frameon=False,
        fontsize=9,
        labelcolor=colours.ink,
    )
