"""Colours, repeated parts and files of all figures."""

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
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

# Blue to red, as in the paper, is told apart by the colour-blind, and lightness changes in one direction, away from the
# background: likelier is redder, and also darker in print and brighter on a dark screen.
DENSITY = ["#c4d8ee", "#8fb2dc", "#8683c4", "#b0508a", "#c4193b", "#7a0016"]
DENSITY_ON_DARK = ["#25406c", "#3f66ad", "#7d66bd", "#cf5684", "#ff6450", "#ffb59b"]
PAPER, INK = "#ffffff", "#1b1e24"
MUTED, FAINT = "#737a86", "#e4e7ec"  # axes and what helps reading; areas
ACCENT = "#00705a"  # truth and answers
THEMES: dict[str, dict[str, Any]] = {  # of pages; pictures are light
    "light": {"density": DENSITY, "muted": MUTED, "accent": ACCENT},
    "dark": {"density": DENSITY_ON_DARK, "muted": "#949cab", "accent": "#4fd6b0"},
}
LOOK: Any = {
    **{"text.color": INK, "axes.titlecolor": INK, "axes.labelcolor": INK, "axes.labelsize": 9},
    **{"axes.facecolor": PAPER, "axes.edgecolor": MUTED, "axes.titlesize": 9.5, "axes.titlelocation": "left"},
    **{"axes.spines.top": False, "axes.spines.right": False, "xtick.labelsize": 8, "ytick.labelsize": 8},
    **{"xtick.color": MUTED, "ytick.color": MUTED},
    **{"legend.frameon": False, "legend.fontsize": 8.5, "legend.handletextpad": 0.4},
}
FILES: dict[str, Any] = {  # endings, and what is left out of files so that the same figure gives the same bytes
    ".png": {"Software": None},
    ".svg": {"Date": None},
    ".pdf": {"CreationDate": None},
}
FORMATS = tuple(FILES)


def density_map(colours: Sequence[str] = DENSITY) -> LinearSegmentedColormap:
    """Colours from unlikely to likely."""
    return LinearSegmentedColormap.from_list("density", list(colours))


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


def density_colours(log_density: Float[np.ndarray, " n"]) -> Float[np.ndarray, "n 4"]:
    """RGBA of points by log density: redder and more opaque is likelier."""
    share = density_shares(log_density)
    colours = np.asarray(density_map()(share), dtype=np.float64)
    colours[:, 3] = 0.08 + 0.92 * share**1.5
    return colours


@contextmanager
def drawing(width: float, height: float, look: Any = LOOK) -> Iterator[Figure]:
    """An empty figure, bound to no window; what is drawn on it inside has our look, or another."""
    with matplotlib.rc_context(look):
        yield Figure(figsize=(width, height), facecolor=PAPER, layout=None)


def heading(figure: Figure, title: str, words: str, *, left: float = 0.07) -> None:
    """A title, and below it what the picture says."""
    figure.text(left, 0.965, title, fontsize=12, weight="bold", va="top")
    figure.text(left, 0.965 - 0.29 / figure.get_figheight(), words, color=MUTED, fontsize=9, va="top")


def marker(label: str, shape: str = "o", size: int = 5, colour: str = MUTED, **options: Any) -> Line2D:
    """A legend's entry for points."""
    return Line2D([], [], linestyle="", marker=shape, markersize=size, color=colour, label=label, **options)


def add_image(figure: Figure, image: Any, box: tuple[float, float, float, float]) -> None:
    """A picture without axes."""
    axes = figure.add_axes(box)
    axes.imshow(np.asarray(image))
    axes.set_axis_off()


def save(figure: Figure, path: str | os.PathLike[str], dpi: int = 160) -> Path:
    """Write a figure as .png, .svg or .pdf; the same figure gives the same bytes."""
    path, buffer = Path(path), io.BytesIO()
    ending = path.suffix.lower()
    if ending not in FORMATS:
        raise InputError(f"a figure's file must end in {', '.join(FORMATS)}, got {path.name}.")
    with matplotlib.rc_context({"svg.hashsalt": "aquamam", "pdf.fonttype": 42}):
        figure.savefig(buffer, format=ending[1:], dpi=dpi, facecolor=PAPER, metadata=FILES[ending])
    return write_bytes(path, buffer.getvalue())
