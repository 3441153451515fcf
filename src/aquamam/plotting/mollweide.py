"""IPDF's view of SO(3): where an axis of the object points, on a Mollweide map, and the tilt about it as a colour."""

import math
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from PIL import Image

from aquamam.errors import InputError
from aquamam.geometry.rotations import rotate
from aquamam.plotting import style
from aquamam.plotting.cloud import SAMPLE, Cloud
from aquamam.plotting.style import MUTED, PAPER

# A cyclic map, blue - violet - orange - green and back; for colour-blind readers the needles show the same angle.
TILT_COLOURS = ("#2b5fb8", "#8a3fa0", "#c8432b", "#b27a00", "#3f8f3a", "#0f8f9c", "#2b5fb8")
SIDES = {"to the viewer": (0.0, -0.6), "up": (0.0, 1.45), "down": (0.0, -1.45)}
SIDES |= {"right": (math.pi / 2, -0.06), "left": (-math.pi / 2, -0.06)}
Angles = Float64[np.ndarray, " n"]


def mollweide(cloud: Cloud, *, axis: str = "z", image: Image.Image | None = None, title: str = "") -> Figure:
    """The samples of a posterior: a point is the direction of the object's axis in the camera's frame.

    Its colour and needle are the tilt about that direction, its size is the density. The map's centre points to the
    viewer, its top up, its right-hand side right, and its rim away from the viewer.
    """
    if axis not in ("x", "y", "z"):
        raise InputError(f"axis must be x, y or z, got {axis!r}.")
    longitude, latitude, tilt = directions(cloud.q, axis)
    share, words = style.density_shares(cloud.log_density), cloud.answer.words
    with style.drawing(9.4, 6.0) as figure:
        axes: Any = figure.add_axes((0.04, 0.17, 0.92, 0.68), projection="mollweide")
        axes.grid(color=MUTED, lw=0.5, alpha=0.35)
        axes.set(xticklabels=[], yticklabels=[])
        wheel = LinearSegmentedColormap.from_list("tilt", TILT_COLOURS)
        rgba = np.asarray(wheel(tilt / (2 * math.pi) % 1), dtype=np.float64)
        if cloud.has_truth:
            ring: dict[str, Any] = {"s": 260, "facecolors": "none"}
            axes.scatter(longitude[:1], latitude[:1], edgecolors=PAPER, lw=4, zorder=5, **ring)
            axes.scatter(longitude[:1], latitude[:1], edgecolors=rgba[:1], lw=2.2, zorder=6, **ring)
        rgba[:, 3] = 0.15 + 0.85 * share
        shown = np.flatnonzero(cloud.source == SAMPLE)
        shown = shown[np.argsort(cloud.log_density[shown], kind="stable")]
        axes.scatter(longitude[shown], latitude[shown], c=rgba[shown], s=3 + 15 * share[shown], linewidths=0, zorder=3)
        axes.add_collection(_needles(longitude[shown], latitude[shown], tilt[shown], rgba[shown]))
        for text, at in SIDES.items():
            axes.text(*at, text, color=MUTED, fontsize=8, ha="center", va="center", zorder=2)
        _draw_legend(figure, cloud, wheel, axis)
        title = title or f"Where the object's {axis} axis points"
        style.heading(figure, title, words[0].upper() + words[1:], left=0.04)
        if image is not None:
            style.add_image(figure, image, (0.855, 0.79, 0.12, 0.19))
    return figure


def directions(q: Float64[np.ndarray, "n 4"], axis: str) -> tuple[Angles, Angles, Angles]:
    """Longitude, latitude and tilt in radians.

    The tilt is the twist t of q = swing times twist: what is left of q when the axis is brought to its direction on the
    shortest way, $t = 2 atan2(q_{xyz} · a, q_w)$.
    """
    a = np.eye(3)["xyz".index(axis)]
    x, y, z = rotate(torch.from_numpy(q), torch.from_numpy(a)).numpy().T
    tilt = 2 * np.arctan2(q[:, :3] @ a, q[:, 3])
    return np.arctan2(x, z), np.arcsin(np.clip(y, -1, 1)), tilt


def _needles(longitude: Angles, latitude: Angles, tilt: Angles, rgba: np.ndarray) -> LineCollection:
    """A short line from each point, pointing up for tilt 0, anticlockwise for more."""
    across = np.sin(tilt) / np.clip(np.cos(latitude), 0.2, None)  # longitudes near the poles are stretched
    start = np.stack([longitude, latitude], -1)
    tip = start + 0.15 * np.stack([-across, np.cos(tilt)], -1)
    tip = np.clip(tip, [-math.pi, -math.pi / 2], [math.pi, math.pi / 2])
    return LineCollection(list(np.stack([start, tip], 1)), colors=rgba, linewidths=0.6, zorder=3)


def _draw_legend(figure: Figure, cloud: Cloud, wheel: LinearSegmentedColormap, axis: str) -> None:
    dial: Any = figure.add_axes((0.045, 0.025, 0.13, 0.17), projection="polar")
    angle = np.linspace(0, 2 * math.pi, 121)
    dial.pcolormesh(angle, [0.55, 1], angle[None, :-1], cmap=wheel, shading="flat")
    dial.set_theta_zero_location("N")
    dial.set(yticks=[], ylim=(0, 1))
    dial.set_xticks(angle[:-1:30], ["0°", "90°", "180°", "270°"], fontsize=7)
    dial.tick_params(pad=-3)
    dial.grid(visible=False)
    dial.spines["polar"].set_visible(False)
    words = f"colour and needle: tilt about the {axis} axis\nsize and opacity: density"
    figure.text(0.205, 0.08, words, fontsize=9, linespacing=1.6)
    handles = [style.marker(f"{int((cloud.source == SAMPLE).sum())} drawn from the posterior")]
    if cloud.has_truth:
        handles.append(style.marker("the true rotation", size=10, markerfacecolor="none", markeredgewidth=2))
    figure.legend(handles=handles, loc="lower right", bbox_to_anchor=(0.98, 0.03), fontsize=9)
