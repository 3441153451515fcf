"""The throughput claim (Section 4.2 of the paper: 52 times IPDF on a GPU), on this machine, with the same small encoder on both sides."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from matplotlib import figure as plots
from matplotlib.patches import Patch
from tqdm import tqdm

from aquamam.checkpoints.checkpoint import build
from aquamam.errors import InputError
from aquamam.reproduce.results import BLUE, GREY, ORANGE, save_figure, style
from aquamam.reproduce.sections import Figure, Row, Section, finish
from aquamam.geometry.grid import grid_size
from aquamam.training.presets import preset
from aquamam.geometry.rotations import random_quat

PAPER_RATIO = 52
FAST_REPEATS = 10  # of what takes milliseconds, in each round


@dataclass(frozen=True, kw_only=True)
class Timing:
    """Medians over the rounds; on a shared machine the CPU's seconds are the fairer ones."""

    seconds: float
    cpu_seconds: float
    rounds: tuple[float, ...]  # wall-clock seconds of each


def interleaved(works: dict[str, tuple[Callable[[], object], int]], rounds: int) -> dict[str, Timing]:
    """Time each (work, repetitions), taking turns after one warm-up each, so that a noisy machine troubles all alike."""
    wall: dict[str, list[float]] = {name: [] for name in works}
    cpu: dict[str, list[float]] = {name: [] for name in works}
    with tqdm(total=(rounds + 1) * len(works), desc="throughput", unit="run", disable=None) as bar:
        for turn in range(rounds + 1):
            for name, (work, repetitions) in works.items():
                for _ in range(repetitions):
                    start, cpu_start = time.perf_counter(), time.process_time()
                    work()
                    if turn:
                        wall[name].append(time.perf_counter() - start)
                        cpu[name].append(time.process_time() - cpu_start)
                bar.update()
    return {
        name: Timing(
            seconds=statistics.median(wall[name]), cpu_seconds=statistics.median(cpu[name]), rounds=tuple(wall[name])
        )
        for name in works
    }


def run(out: Path, *, level: int = 5, rounds: int = 3, seed: int = 0) -> dict[str, Any]:
    """Time both systems on one image; returns what OUT/throughput.json holds."""
    if rounds < 1:
        raise InputError(f"rounds must be a positive whole number, got {rounds}.")
    torch.manual_seed(seed)
    ours = build("aquamam", preset("die-small").model.to_dict()).eval()
    ipdf = build("ipdf", {**preset("ipdf-small").model.to_dict(), "level": level}).eval()
    image, q = torch.rand(1, 3, 64, 64), random_quat((1, 1))
    works: dict[str, tuple[Callable[[], object], int]] = {
        "aquamam_likelihood": (lambda: ours(image).log_prob(q), FAST_REPEATS),
        "aquamam_prediction": (lambda: ours(image).mode, FAST_REPEATS),
        "ipdf_likelihood": (lambda: ipdf.posterior(image, normaliser="truth").log_prob(q), 1),  # type: ignore[operator]
        "ipdf_prediction": (lambda: ipdf(image).mode, 1),
    }
    with torch.inference_mode():
        times = interleaved(works, rounds)
    median = {name: timing.seconds for name, timing in times.items()}
    cpu = {name: timing.cpu_seconds for name, timing in times.items()}
    ratios = {what: median[f"ipdf_{what}"] / median[f"aquamam_{what}"] for what in ("likelihood", "prediction")}
    cpu_ratios = {what: cpu[f"ipdf_{what}"] / cpu[f"aquamam_{what}"] for what in ratios}
    size = grid_size(level)
    result = {
        "grid": size, "rounds": rounds, "threads": torch.get_num_threads(), "rounds_seconds": {name: timing.rounds for name, timing in times.items()}, "median_seconds": median,
        "median_cpu_seconds": cpu, "cpu_ratio": cpu_ratios,
        "ratio": ratios, "paper": {"ratio": PAPER_RATIO}, "image_size": 64,
        "parameters": {"aquamam": ours.parameter_count, "ipdf": ipdf.parameter_count}, "seed": seed,
    }  # fmt: skip
    draw(out / "throughput.png", median, ratios, size)
    rows = [
        Row(
            what=f"{what}: IPDF's time over AQuaMaM's (by CPU time)",
            here=f"{ratios[what]:.0f}x ({cpu_ratios[what]:.0f}x)",
            paper=f"{PAPER_RATIO}x",
        )
        for what in ratios
    ]
    rows += [
        Row(what=f"{what}, one image: AQuaMaM, IPDF (s)", here=f"{median[f'aquamam_{what}']:.4f}, {median[f'ipdf_{what}']:.2f}")
        for what in ratios
    ]  # fmt: skip
    section = Section(
        name="throughput",
        title="Section 4.2: throughput against IPDF",
        rows=tuple(rows),
        text=(
            f"Medians of {rounds} interleaved rounds on {torch.get_num_threads()} CPU thread(s), one image of 64 x 64, encoding included, untrained "
            "weights (which cost the same). Both systems have the same convolutional and Transformer encoder, so they differ in what "
            "the paper is about: three tokens against a network over the whole grid.",
        ),
        reductions=(
            "A CPU, one image at a time and a small encoder instead of a V100 with batches and the paper's networks.",
            *((f"IPDF's grid has {size:,} rotations instead of 2,359,296.",) if level != 5 else ()),
        ),
        figures=(Figure(file="throughput.png", caption=f"Seconds for one image; IPDF visits {size:,} rotations."),),
    )  # fmt: skip
    return finish(out, section, result)


def draw(path: Path, median: dict[str, float], ratios: dict[str, float], size: int) -> Path:
    """Bars on a logarithmic axis."""
    with style():
        figure = plots.Figure(figsize=(8.4, 3.2))
        axis = figure.subplots()
        for place, what in enumerate(("likelihood", "prediction")):
            for shift, system, colour in ((0.19, "aquamam", BLUE), (-0.19, "ipdf", ORANGE)):
                seconds = median[f"{system}_{what}"]
                axis.barh(1 - place + shift, seconds, 0.34, color=colour, left=0)
                shown = f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.1f} s"
                note = f"  {shown}" + (f" ({ratios[what]:.0f} times)" if system == "ipdf" else "")
                axis.text(seconds, 1 - place + shift, note, va="center", fontsize=10)
        axis.set(xscale="log", xlabel="seconds for one image (logarithmic)", ylim=(-0.6, 2.0))
        axis.set_xlim(min(median.values()) / 3, max(median.values()) * 30)
        axis.set_yticks([1, 0], ["likelihood", "prediction"])
        axis.grid(axis="x", color=GREY, alpha=0.25, lw=0.6)
        handles = [Patch(color=BLUE, label="AQuaMaM"), Patch(color=ORANGE, label=f"IPDF on {size:,} rotations")]
        axis.legend(handles=handles, loc="upper center", ncols=2)
        return save_figure(figure, path)
