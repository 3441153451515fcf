"""Colours, themes, repeated parts and files of all figures."""

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Float
from matplotlib.colors import LinearSegmentedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from aquamam.errors import InputError
from aquamam.files import write_bytes
from aquamam.geometry.rotations import LOG_UNIFORM

FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True)
class Theme:
    """The colours of a figure. `density` runs from unlikely to likely, from blue to red as in the paper."""

    paper: str  # background
    ink: str  # text and what matters
    muted: str  # axes and what helps reading
    faint: str  # areas
    accent: str  # truth and answers
    density: tuple[str, ...]


# Blue to red is told apart by the colour-blind, and lightness changes in one direction, away from the background:
# likelier is redder, and also darker in print and brighter on a dark screen.
_LIGHT = ("#c4d8ee", "#8fb2dc", "#8683c4", "#b0508a", "#c4193b", "#7a0016")
_DARK = ("#25406c", "#3f66ad", "#7d66bd", "#cf5684", "#ff6450", "#ffb59b")
THEMES = {
    "light": Theme("#ffffff", "#1b1e24", "#737a86", "#e4e7ec", "#00705a", _LIGHT),
    "dark": Theme("#14171c", "#eceef2", "#949cab", "#2a2f38", "#4fd6b0", _DARK),
}


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

    The uniform density is the anchor, so that a flat posterior looks flat and not red all over. The highest half
    percent does not count: one sample in a sliver of a cell, where densities are huge, must not pale all the others.
    """
    high = np.quantile(log_density, 0.995, method="lower") if len(log_density) else -np.inf
    return Normalize(LOG_UNIFORM - 2, max(float(high), LOG_UNIFORM + 4), clip=True)


def density_shares(log_density: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Places on the range of colours, from 0 to 1."""
    return np.asarray(density_scale(log_density)(log_density), dtype=np.float64)


def density_colours(log_density: Float[np.ndarray, " n"], theme: str = "light") -> Float[np.ndarray, "n 4"]:
    """RGBA of points by log density: redder and more opaque is likelier."""
    share = density_shares(log_density)
    colours = np.asarray(density_map(get_theme(theme))(share), dtype=np.float64)
    colours[:, 3] = 0.08 + 0.92 * share**1.5
    return colours


@contextmanager
def drawing(theme: str, width: float, height: float) -> Iterator[tuple[Figure, Theme]]:
    """An empty figure, bound to no window; what is drawn on it inside has the theme's colours."""
    colours = get_theme(theme)
    look: Any = {
        **{"text.color": colours.ink, "axes.titlecolor": colours.ink, "axes.labelcolor": colours.ink},
        **{"axes.facecolor": colours.paper, "axes.edgecolor": colours.muted, "axes.labelsize": 9},
        **{"axes.spines.top": False, "axes.spines.right": False, "axes.titlesize": 9.5, "axes.titlelocation": "left"},
        **{"xtick.color": colours.muted, "ytick.color": colours.muted, "xtick.labelsize": 8, "ytick.labelsize": 8},
        **{"legend.frameon": False, "legend.fontsize": 8.5, "legend.handletextpad": 0.4},
    }
    with matplotlib.rc_context(look):
        yield Figure(figsize=(width, height), facecolor=colours.paper, layout=None), colours


def heading(figure: Figure, theme: Theme, title: str, words: str, *, left: float = 0.07) -> None:
    """A title, and below it what the picture says."""
    figure.text(left, 0.965, title, fontsize=12, weight="bold", va="top")
    figure.text(left, 0.965 - 0.29 / figure.get_figheight(), words, color=theme.muted, fontsize=9, va="top")


def marker(label: str, colour: str, shape: str = "o", size: int = 5, **options: Any) -> Line2D:
    """A legend's entry for points."""
    return Line2D([], [], linestyle="", marker=shape, markersize=size, color=colour, label=label, **options)


def add_image(figure: Figure, image: Any, box: tuple[float, float, float, float]) -> None:
    """A picture without axes."""
    axes = figure.add_axes(box)
    axes.imshow(np.asarray(image))
    axes.set_axis_off()


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
    return write_bytes(path, buffer.getvalue())
