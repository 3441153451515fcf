"""Curves of a training run and of calibration."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from aquamam.errors import InputError
from aquamam.geometry.rotations import LOG_UNIFORM
from aquamam.plotting.style import get_theme, new_figure, style_axes


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a run's log.jsonl, or of the run's folder; a last line that is still being written is left out."""
    path = Path(path)
    path = path / "log.jsonl" if path.is_dir() else path
    if not path.is_file():
        raise InputError(f"a run's folder must hold log.jsonl, and there is none at {path}.")
    records = []
    try:
        lines = path.read_text().splitlines()
    except UnicodeDecodeError:
        raise InputError(
            f"a learning curve comes from a run's folder or its log.jsonl, and {path} is not text."
        ) from None
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            float(record["step"]), float(record["log_likelihood"])
        except (ValueError, KeyError, TypeError):
            if number == len(lines):
                break
            raise InputError(f"line {number} of {path} is no record of a training run.") from None
        records.append(record)
    if not records:
        raise InputError(f"{path} holds no record yet; the first comes with the first validation.")
    return records


def learning_curve(records: list[dict[str, Any]], *, title: str = "", theme: str = "light") -> Figure:
    """Log-likelihood of validation and training against the images seen, between the uniform density and the ceiling."""
    colours = get_theme(theme)
    figure = new_figure(colours, 8.4, 5.0)
    axes = figure.add_axes((0.09, 0.12, 0.72, 0.74))
    style_axes(axes, colours)
    x = np.array([r.get("images", r["step"]) for r in records], dtype=float)
    valid = np.array([r["log_likelihood"] for r in records], dtype=float)
    train = np.array([r.get("train_log_likelihood", math.nan) for r in records], dtype=float)
    best = int(np.nanargmax(valid)) if np.isfinite(valid).any() else 0
    mark = "o" if len(x) < 40 else ""
    axes.plot(x, train, color=colours.density[1], lw=1.3, ls="--", marker=mark, ms=3)
    axes.plot(x, valid, color=colours.density[-2], lw=1.9, marker=mark, ms=3.5)
    axes.plot(x[best], valid[best], marker="o", ms=8, mfc="none", mec=colours.ink, mew=1.2)
    axes.set_xlim(0, x.max() * 1.02 if x.max() > 0 else 1)
    ends = [(valid[-1], "validation", colours.density[-2]), (train[-1], "training", colours.density[1])]
    ends += [(LOG_UNIFORM, "uniform", colours.muted)]
    axes.axhline(LOG_UNIFORM, color=colours.muted, lw=0.8, ls=":")
    ceiling = records[-1].get("ceiling")
    if ceiling is not None and math.isfinite(ceiling):
        axes.axhline(ceiling, color=colours.muted, lw=0.8, ls=":")
        ends.append((float(ceiling), f"ceiling {ceiling:.2f}", colours.muted))
    low, high = axes.get_ylim()
    for y, (_, text, colour) in zip(_apart([e[0] for e in ends], 0.05 * (high - low)), ends):
        if math.isfinite(y):
            axes.text(1.015, y, text, color=colour, fontsize=9, va="center", transform=axes.get_yaxis_transform())
    axes.set_xlabel("images seen", fontsize=9)
    axes.set_ylabel("mean log-likelihood (nats, volume π²)", fontsize=9)
    axes.xaxis.set_major_formatter(
        lambda value, _: f"{value / 1e6:g} M" if value >= 1e6 else f"{value / 1e3:g} k" if value else "0"
    )
    head = f"best validation {valid[best]:.3f} after {x[best]:,.0f} images"
    if records[best].get("elapsed"):
        head += f" and {records[best]['elapsed'] / 60:.0f} minutes"
    figure.text(0.09, 0.955, title or "Learning curve", color=colours.ink, fontsize=12, weight="bold", va="top")
    figure.text(0.09, 0.9, head, color=colours.muted, fontsize=9, va="top")
    return figure


def _apart(values: list[float], gap: float) -> list[float]:
    """The values moved upwards as little as keeps labels from overlapping."""
    result = list(values)
    floor = -math.inf
    for i in sorted((i for i in range(len(values)) if math.isfinite(values[i])), key=lambda i: values[i]):
        result[i] = floor = max(values[i], floor + gap)
    return result


def calibration(ranks: Float[np.ndarray, " n"], *, title: str = "", theme: str = "light") -> Figure:
    """How often the truth lies in the region of highest density that holds a given probability.

    ranks: for each image, the share of probability whose density is above the truth's (0 = the truth is at the highest peak); uniform
    numbers in [0, 1] if the model is calibrated. The band is where 95 % of calibrated curves stay (Kolmogorov and Smirnov).
    """
    ranks = np.sort(np.asarray(ranks, dtype=np.float64))
    if len(ranks) == 0 or not ((ranks >= 0) & (ranks <= 1)).all():
        raise InputError("ranks must be numbers between 0 and 1, one an image, and at least one.")
    colours = get_theme(theme)
    figure = new_figure(colours, 5.6, 5.8)
    axes = figure.add_axes((0.13, 0.11, 0.82, 0.75))
    style_axes(axes, colours)
    covered = np.arange(1, len(ranks) + 1) / len(ranks)
    band = 1.358 / math.sqrt(len(ranks))
    line = np.array([0.0, 1.0])
    axes.fill_between(line, line - band, line + band, color=colours.faint, lw=0, label="95 % of calibrated models")
    axes.plot(line, line, color=colours.muted, lw=0.9, ls=":")
    axes.step(
        np.r_[0, ranks, 1], np.r_[0, covered, 1], where="post", color=colours.density[-2], lw=1.8, label="this model"
    )
    axes.text(0.03, 0.9, "above the line:\nless sure than it could be", color=colours.muted, fontsize=8.5, va="top")
    axes.text(0.97, 0.1, "below the line:\nsurer than it should be", color=colours.muted, fontsize=8.5, ha="right")
    axes.set(xlim=(0, 1), ylim=(0, 1), aspect="equal")
    axes.set_xlabel("probability of the region of highest density", fontsize=9)
    axes.set_ylabel("share of images whose truth lies in it", fontsize=9)
    axes.legend(loc="upper left", bbox_to_anchor=(0.02, 0.78), frameon=False, fontsize=8.5, labelcolor=colours.ink)
    distance = float(np.max(np.abs(np.r_[covered - ranks, covered - 1 / len(ranks) - ranks])))
    figure.text(0.13, 0.965, title or "Calibration", color=colours.ink, fontsize=12, weight="bold", va="top")
    figure.text(
        0.13, 0.915, f"{len(ranks):,} images, largest gap {distance:.3f}", color=colours.muted, fontsize=9, va="top"
    )
    return figure
