"""Figures of the toy experiment, made to be laid beside the paper's Figures 5 and 6."""

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from aquamam.reproduce.results import BLUE, GREY, ORANGE, save_figure, style


def proportions(path: Path, system: str, viewpoints: list[dict[str, Any]]) -> Path:
    """Six panels of sampled shares of the modes against the uniform truth (Figure 6)."""
    with style():
        figure = Figure(figsize=(9.6, 5.6))
        axes = figure.subplots(2, -(-len(viewpoints) // 2), squeeze=False).ravel()
        for axis, row in zip(axes, viewpoints):
            counts = np.array(row["counts"])
            modes, n = len(counts), max(int(counts.sum()), 1)
            truth = 1 / modes
            noise = 2 * np.sqrt(truth * (1 - truth) / n)
            axis.bar(np.arange(modes), counts / n, width=0.8 if modes < 32 else 0.9, color=BLUE)
            axis.axhspan(truth - noise, truth + noise, color=ORANGE, alpha=0.25, lw=0)
            axis.axhline(truth, color=ORANGE, ls="--", lw=1.6)
            axis.set_xlim(-1, modes)
            axis.set_ylim(0, max(1.35 * truth, 1.25 * float(counts.max()) / n))
            axis.set_xticks(np.arange(0, modes, max(1, modes // 8)))
            plural = "rotation" if modes == 1 else "rotations"
            axis.set_title(f"viewpoint {row['viewpoint']}: {modes} {plural}")
            note = f"total variation {row['total_variation']:.4f}"
            if modes > 1:
                note += f" (truth: {row['total_variation_of_truth']:.4f})"
            axis.text(0.5, 0.965, note, transform=axis.transAxes, ha="center", va="top", fontsize=9)
        total = sum(row["samples"] for row in viewpoints)
        figure.suptitle(f"{system}: shares of {total:,} sampled rotations")
        for axis in axes[len(axes) // 2 :]:
            axis.set_xlabel("rotation of the viewpoint")
        figure.supylabel("share of the samples")
        handles = [
            Patch(color=BLUE, label="sampled"),
            Line2D([], [], color=ORANGE, ls="--", label="truth (uniform)"),
            Patch(color=ORANGE, alpha=0.25, label="two standard deviations of sampling the truth"),
        ]
        figure.legend(handles=handles, loc="outside lower center", ncols=3)
        return save_figure(figure, path)


def curve(
    path: Path,
    nll: list[float],
    minimum: float,
    notes: dict[str, float] | None = None,
    *,
    system: str = "AQuaMaM",
    what: str = "NLL of a sentence",
) -> Path:
    """NLL of a sentence, or another loss, while training, with its theoretical minimum (Figure 5), and what is left of it on a logarithmic axis.

    `notes` name heights of the right panel.
    """
    with style():
        figure = Figure(figsize=(9.6, 3.6))
        left, right = figure.subplots(1, 2)
        steps = np.arange(len(nll))
        left.plot(steps, nll, color=BLUE, lw=2, label=system)
        left.axhline(minimum, color=ORANGE, ls="--", lw=1.6, label=f"theoretical minimum, {minimum + 0.0:.4f}")
        left.set_ylim(min(0.0, minimum) - 0.03 * (max(nll) - minimum), None)
        left.set_ylabel(f"{what} (nats)")
        left.legend(loc="upper right")
        gap = np.array(nll) - minimum
        right.semilogy(steps, np.maximum(gap, 1e-6), color=BLUE, lw=1.6)
        right.set_ylabel("above the minimum (nats)")
        right.grid(axis="y", color=GREY, alpha=0.3, lw=0.6)
        for note, height in (notes or {}).items():
            right.axhline(height, color=ORANGE, ls=":", lw=1.4)
            right.text(0.99, height * 4, note, transform=right.get_yaxis_transform(), ha="right", fontsize=9)
        for axis in (left, right):
            axis.set_xlabel("step")
            axis.set_xlim(0, max(len(nll), 1))
        return save_figure(figure, path)
