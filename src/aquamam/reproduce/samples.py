"""The test of samples that every system of the toy takes: distances to the modes, and the modes' shares."""

import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from scipy.stats import chisquare
from torch import Tensor
from tqdm import tqdm

from aquamam.geometry.rotations import geodesic_angle
from aquamam.posterior.distribution import RotationDistribution
from aquamam.posterior.sentences import QuaternionSentences
from aquamam.reproduce.fit_pairs import Pairs
from aquamam.reproduce.report import BLUE, GREY, ORANGE, drawing


def nearest(
    q: Float[Tensor, "n 4"], modes: Float[Tensor, "modes 4"]
) -> tuple[Float[Tensor, "n"], Int[Tensor, "modes"]]:
    """Radians from each rotation to the nearest mode, and to how many each mode is the nearest."""
    distance, which = zip(*(geodesic_angle(part.double()[:, None], modes).min(1) for part in q.split(4096)))
    return torch.cat(distance), torch.cat(which).bincount(minlength=len(modes))


class Drawn(NamedTuple):
    """Samples from the hierarchical model: a viewpoint, then a rotation from a posterior."""

    category: Int[Tensor, "samples"]
    q: Float[Tensor, "samples 4"]
    wrong: Bool[Tensor, "samples"] | None = None  # of systems with sentences: whether one is of no true rotation


def draw(posterior: RotationDistribution, pairs: Pairs, count: int, seed: int) -> Drawn:
    """Sample; AQuaMaM as in Listing 3: bins given values drawn in the bins before, then a point of the cell."""
    generator = torch.Generator().manual_seed(seed)
    counts = torch.randint(pairs.categories, (count,), generator=generator).bincount(minlength=pairs.categories)
    kept = torch.arange(int(counts.max()))[:, None] < counts  # every viewpoint gets the largest of the counts
    category = torch.arange(pairs.categories).expand_as(kept)[kept]
    if not isinstance(posterior, QuaternionSentences):
        return Drawn(category, posterior.sample((len(kept),), generator=generator)[kept])
    bar = tqdm(kept.split(200), desc="sample", unit="part", disable=None)
    drawn = [posterior.sentences(len(part), generator=generator) for part in bar]
    chart, cell = torch.cat([part.chart for part in drawn])[kept], torch.cat([part.cell for part in drawn])[kept]
    truth, _ = posterior._cell(pairs.q)
    same = (truth[:, category] == torch.cat([chart[:, None], cell], -1)).all(-1)
    right = (same & pairs.real[:, category]).any(0)
    cells = posterior.cells
    return Drawn(category, cells.chart.join(chart, cells.uniform(cell, generator)), ~right)


def judge(pairs: Pairs, drawn: Drawn, seed: int = 0) -> dict[str, Any]:
    """How samples compare with the truth: distances to the nearest mode, and the shares of the modes."""
    distance, viewpoints = torch.zeros(len(drawn.q), dtype=torch.float64), []
    random = np.random.default_rng(seed)
    for i in range(pairs.categories):
        mine = drawn.category == i
        distance[mine], visits = nearest(drawn.q[mine], pairs.of(i))
        mean = float(torch.rad2deg(distance[mine].mean()))
        viewpoints.append({"viewpoint": i, **compare_shares(visits.numpy(), random), "mean_distance_deg": mean})
    result: dict[str, Any] = {"samples": len(drawn.q), "mean_distance_deg": float(torch.rad2deg(distance.mean()))}
    if drawn.wrong is not None:
        result["wrong_sentences"] = int(drawn.wrong.sum())
        result["wrong_sentences_near_a_mode"] = int((distance[drawn.wrong] < math.radians(1)).sum())
    return {**result, "viewpoints": viewpoints, "verdict": verdict(viewpoints)}


def compare_shares(counts: np.ndarray, random: np.random.Generator) -> dict[str, Any]:
    """Total variation of sampled from uniform shares, the same for samples of the truth, and the chi-square p."""
    n, modes = int(counts.sum()), len(counts)
    truth = np.full(modes, 1 / modes)
    simulated = np.abs(random.multinomial(n, truth, size=4000) / max(n, 1) - truth).sum(1) / 2
    return {
        "samples": n,
        "counts": counts.tolist(),
        "total_variation": float(np.abs(counts / max(n, 1) - truth).sum() / 2),
        "total_variation_of_truth": float(simulated.mean()),
        "total_variation_of_truth_95": float(np.quantile(simulated, 0.95)),
        "p_value": float(chisquare(counts).pvalue) if modes > 1 and n else 1.0,
    }


def verdict(viewpoints: list[dict[str, Any]]) -> str:
    """The worst viewpoint's total variation beside what sampling the truth gives, in words."""
    rows = [row for row in viewpoints if len(row["counts"]) > 1]
    worst = max(rows, key=lambda row: row["total_variation"] / max(row["total_variation_of_truth"], 1e-12))
    failed = sum(row["p_value"] < 0.001 for row in rows)
    test = f"{failed} of {len(rows)} viewpoints with several rotations fail the chi-square test at p < 0.001"
    found = "the worst, viewpoint {viewpoint}, has a total variation of {total_variation:.3f}".format_map(worst)
    return f"{test}; {found} where sampling the truth gives {worst['total_variation_of_truth']:.3f}"


def draw_shares(path: Path, system: str, viewpoints: list[dict[str, Any]]) -> None:
    """Six panels of sampled shares of the modes against the uniform truth (Figure 6)."""
    with drawing(path, 9.6, 5.6) as figure:
        axes = figure.subplots(2, 3)
        for axis, row in zip(axes.flat, viewpoints):
            counts, modes, n = np.array(row["counts"]), len(row["counts"]), max(row["samples"], 1)
            truth = 1 / modes
            noise = 2 * math.sqrt(truth * (1 - truth) / n)
            axis.bar(np.arange(modes), counts / n, width=0.8 if modes < 32 else 0.9, color=BLUE)
            axis.axhspan(truth - noise, truth + noise, color=ORANGE, alpha=0.25, lw=0)
            axis.axhline(truth, color=ORANGE, ls="--", lw=1.6)
            axis.set(xlim=(-1, modes), ylim=(0, max(1.35 * truth, 1.25 * float(counts.max()) / n)))
            axis.set_xticks(np.arange(0, modes, max(1, modes // 8)))
            axis.set_title(f"viewpoint {row['viewpoint']}: {modes} rotation{'s' if modes > 1 else ''}")
            of_truth = f" (truth: {row['total_variation_of_truth']:.4f})" if modes > 1 else ""
            note = f"total variation {row['total_variation']:.4f}{of_truth}"
            axis.text(0.5, 0.965, note, transform=axis.transAxes, ha="center", va="top", fontsize=9)
        figure.suptitle(f"{system}: shares of {sum(row['samples'] for row in viewpoints):,} sampled rotations")
        for axis in axes[1]:
            axis.set_xlabel("rotation of the viewpoint")
        figure.supylabel("share of the samples")
        noise_of_truth = Patch(color=ORANGE, alpha=0.25, label="two standard deviations of sampling the truth")
        handles = [Patch(color=BLUE, label="sampled"), Line2D([], [], color=ORANGE, ls="--", label="truth (uniform)")]
        figure.legend(handles=[*handles, noise_of_truth], loc="outside lower center", ncols=3)


def draw_curve(
    path: Path, system: str, losses: list[float], minimum: float, note: tuple[str, float] | None = None
) -> None:
    """The loss while training with its theoretical minimum (Figure 5), and what is left of it on a logarithmic axis.

    note: a height of the right panel and what it means.
    """
    with drawing(path, 9.6, 3.6) as figure:
        left, right = figure.subplots(1, 2)
        left.plot(losses, color=BLUE, lw=2, label=system)
        left.axhline(minimum, color=ORANGE, ls="--", lw=1.6, label=f"theoretical minimum, {minimum + 0.0:.4f}")
        left.set_ylim(min(0.0, minimum) - 0.03 * (max(losses) - minimum), None)
        left.set_ylabel("loss (nats)")
        left.legend(loc="upper right")
        right.semilogy(np.maximum(np.array(losses) - minimum, 1e-6), color=BLUE, lw=1.6)
        right.set_ylabel("above the minimum (nats)")
        right.grid(axis="y", color=GREY, alpha=0.3, lw=0.6)
        if note is not None:
            meaning, height = note
            right.axhline(height, color=ORANGE, ls=":", lw=1.4)
            right.text(0.99, height * 4, meaning, transform=right.get_yaxis_transform(), ha="right", fontsize=9)
        for axis in (left, right):
            axis.set(xlabel="step", xlim=(0, len(losses)))
