"""The learning curve of a training run."""

import json
import math
import os
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from aquamam.errors import InputError, require
from aquamam.geometry.rotations import LOG_UNIFORM
from aquamam.plotting.style import DENSITY, INK, MUTED, drawing, heading


def read_log(path: str | os.PathLike[str]) -> list[dict[str, Any]]:
    """The records of a run's log.jsonl, or of the run's folder; a last line that is still being written is left out."""
    path = Path(path)
    path = path / "log.jsonl" if path.is_dir() else path
    try:
        lines = path.read_text().splitlines()
    except FileNotFoundError:
        raise InputError(f"a run's folder must hold log.jsonl, and there is none at {path}.") from None
    except UnicodeDecodeError:
        raise InputError(f"a learning curve comes from a run's log.jsonl, and {path} is not text.") from None
    records = []
    for number, line in enumerate(lines, start=1):
        try:
            record = json.loads(line)
            float(record["step"]), float(record["log_likelihood"])
            records.append(record)
        except (ValueError, KeyError, TypeError):
            require(number == len(lines), f"line {number} of {path} is no record of a training run.")
    require(bool(records), f"{path} holds no record yet; the first comes with the first validation.")
    return records


def learning_curve(records: list[dict[str, Any]], *, title: str = "") -> Figure:
    """Log-likelihood of validation and training against images seen, between the uniform density and the ceiling."""
    x = np.array([r.get("images", r["step"]) for r in records], dtype=float)
    valid = np.array([r["log_likelihood"] for r in records], dtype=float)
    train = np.array([r.get("train_log_likelihood", math.nan) for r in records], dtype=float)
    best = int(np.nanargmax(valid)) if np.isfinite(valid).any() else 0
    with drawing(8.4, 5.0) as figure:
        axes: Any = figure.add_axes((0.09, 0.12, 0.72, 0.74))
        shape = "o" if len(x) < 40 else ""
        axes.plot(x, train, color=DENSITY[1], lw=1.3, ls="--", marker=shape, ms=3)
        axes.plot(x, valid, color=DENSITY[-2], lw=1.9, marker=shape, ms=3.5)
        axes.plot(x[best], valid[best], marker="o", ms=8, mfc="none", mec=INK, mew=1.2)
        axes.set_xlim(0, x.max() * 1.02 if x.max() > 0 else 1)
        labels = [(valid[-1], "validation", DENSITY[-2]), (train[-1], "training", DENSITY[1])]
        ceiling = records[-1].get("ceiling")
        for y, text in ((LOG_UNIFORM, "uniform"), (ceiling, f"ceiling {ceiling or 0:.2f}")):
            if y is not None and math.isfinite(y):
                axes.axhline(y, color=MUTED, lw=0.8, ls=":")
                labels.append((y, text, MUTED))
        low, high = axes.get_ylim()
        floor, gap = -math.inf, 0.05 * (high - low)  # labels move up as little as keeps them from overlapping
        for y, text, colour in sorted(label for label in labels if math.isfinite(label[0])):
            floor = max(y, floor + gap)
            axes.text(1.015, floor, text, color=colour, fontsize=9, va="center", transform=axes.get_yaxis_transform())
        axes.set(xlabel="images seen", ylabel="mean log-likelihood (nats, volume π²)")
        axes.xaxis.set_major_formatter(lambda v, _: f"{v / 1e6:g} M" if v >= 1e6 else f"{v / 1e3:g} k" if v else "0")
        words = f"best validation {valid[best]:.3f} after {x[best]:,.0f} images"
        if records[best].get("elapsed"):
            words += f" and {records[best]['elapsed'] / 60:.0f} minutes"
        heading(figure, title or "Learning curve", words, left=0.09)
    return figure
