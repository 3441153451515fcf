"""Colours, themes and files of all figures."""

import io
import os
from dataclasses import dataclass
from pathlib import Path

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure

from aquamam.errors import InputError
from aquamam.geometry.rotations import LOG_UNIFORM

FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True, kw_only=True)
class Theme:
    """The colours of a figure. `density` runs from unlikely to likely, from blue to red as in the paper."""

    paper: str  # background
    ink: str  # text and what matters
    muted: str  # axes and what helps reading
    faint: str  # areas
    accent: str  # truth and answers
    density: tuple[str, ...]


# Blue to red is told apart by the colour-blind, and lightness changes in one direction, away from the background: likelier is
# redder, and also darker in print and brighter on a dark screen.
THEMES = {
    "light": Theme(
        paper="#ffffff", ink="#1b1e24", muted="#737a86", faint="#e4e7ec", accent="#00705a",
        density=("#c4d8ee", "#8fb2dc", "#8683c4", "#b0508a", "#c4193b", "#7a0016"),
    ),
    "dark": Theme(
        paper="#14171c", ink="#eceef2", muted="#949cab", faint="#2a2f38", accent="#4fd6b0",
        density=("#25406c", "#3f66ad", "#7d66bd", "#cf5684", "#ff6450", "#ffb59b"),
    ),
}  # fmt: skip


def get_theme(name: str) -> Theme:
    """The theme of that name."""
    if name not in THEMES:
        raise InputError(f"theme must be one of {', '.join(THEMES)}, got {name!r}.")
    return THEMES[name]


def density_map(theme: Theme) -> LinearSegmentedColormap:
    """Colours from unlikely to likely."""
    return LinearSegmentedColormap.from_list("density", list(theme.density))


def density_scale(log_density: Float[np.ndarray, " n"]) -> Normalize:
    """The range of colours: from two nats below the uniform density to the highest one, at least four above it.

    The uniform density is the anchor, so that a flat posterior looks flat and not red all over. The highest half percent does not
    count: one sample in a sliver of a cell, where densities are huge, must not pale all the others.
    """
    high = np.quantile(log_density, 0.995, method="lower") if len(log_density) else -np.inf
    return Normalize(LOG_UNIFORM - 2, max(float(high), LOG_UNIFORM + 4), clip=True)


def density_colours(log_density: Float[np.ndarray, " n"], theme: str = "light") -> Float[np.ndarray, "n 4"]:
    """RGBA of points by log density: redder and more opaque is likelier."""
    share = np.asarray(density_scale(log_density)(log_density), dtype=np.float64)
    colours = np.asarray(density_map(get_theme(theme))(share), dtype=np.float64)
    colours[:, 3] = 0.08 + 0.92 * share**1.5
    return colours


def new_figure(theme: Theme, width: float, height: float) -> Figure:
    """An empty figure in the theme's colours, bound to no window."""
    return Figure(figsize=(width, height), facecolor=theme.paper, layout=None)


def save(figure: Figure, path: str | os.PathLike[str], dpi: int = 160) -> Path:
    """Write a figure as .png, .svg or .pdf; the same figure gives the same bytes."""
    path = Path(path)
    if path.suffix.lower() not in FORMATS:
        raise InputError(f"a figure's file must end in {', '.join(FORMATS)}, got {path.name}.")
    kind = path.suffix.lower()[1:]
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}[kind]
    buffer = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "aquamam", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=kind, dpi=dpi, facecolor=figure.get_facecolor(), metadata=metadata)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(buffer.getvalue())
    return path


def style_axes(axes, theme: Theme) -> None:
    """Plain axes in the theme's colours, without the box's upper and right side."""
    axes.set_facecolor(theme.paper)
    axes.tick_params(colors=theme.muted, labelsize=8)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom", "geo"))
        spine.set_color(theme.muted)
    for label in (axes.xaxis.label, axes.yaxis.label, axes.title):
        label.set_color(theme.ink)
