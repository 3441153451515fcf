"""Throughput against IPDF (Section 4.2: 52 times on a GPU) on this machine, with one small encoder for both."""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from aquamam.checkpoints.checkpoint import build
from aquamam.geometry.grid import grid_size
from aquamam.geometry.rotations import random_quat
from aquamam.reproduce.report import finish
from aquamam.training.presets import preset

Seconds = dict[str, list[float]]
REPEATS = {"aquamam": 10, "ipdf": 1}  # in each round: ours takes milliseconds


def interleaved(works: dict[str, Callable[[], object]], rounds: int) -> tuple[Seconds, Seconds]:
    """Wall-clock and CPU seconds of works in alternation, so that a noisy machine troubles all equally."""
    wall: Seconds = {name: [] for name in works}
    cpu: Seconds = {name: [] for name in works}
    with tqdm(total=(rounds + 1) * len(works), desc="throughput", unit="run", disable=None) as bar:
        for i in range(rounds + 1):
            for name, work in works.items():
                for _ in range(REPEATS[name.split("_")[0]]):
                    start, cpu_start = time.perf_counter(), time.process_time()
                    work()
                    if i:
                        wall[name].append(time.perf_counter() - start)
                        cpu[name].append(time.process_time() - cpu_start)
                bar.update()
    return wall, cpu


def run(out: Path, *, level: int = 5, rounds: int = 3, seed: int = 0) -> dict[str, Any]:
    """Time both systems on one image; returns what OUT/throughput.json holds."""
    torch.manual_seed(seed)
    ours = build("aquamam", preset("die-small").model.to_dict()).eval()
    ipdf = build("ipdf", {**preset("ipdf-small").model.to_dict(), "level": level}).eval()
    image, q = torch.rand(1, 3, 64, 64), random_quat((1, 1))
    works: dict[str, Callable[[], object]] = {
        "aquamam_likelihood": lambda: ours(image).log_prob(q),
        "aquamam_prediction": lambda: ours(image).mode,
        "ipdf_likelihood": lambda: ipdf.posterior(image, normaliser="truth").log_prob(q),  # type: ignore[call-arg]
        "ipdf_prediction": lambda: ipdf(image).mode,
    }
    with torch.inference_mode():
        wall, cpu = interleaved(works, rounds)
    median, median_cpu = ({name: statistics.median(of[name]) for name in works} for of in (wall, cpu))
    ratios, cpu_ratios = (
        {what: of[f"ipdf_{what}"] / of[f"aquamam_{what}"] for what in ("likelihood", "prediction")}
        for of in (median, median_cpu)
    )
    settings = {"grid": grid_size(level), "rounds": rounds, "threads": torch.get_num_threads(), "seed": seed}
    result = {
        **settings,
        **{"rounds_seconds": wall, "median_seconds": median, "median_cpu_seconds": median_cpu},
        **{"ratio": ratios, "cpu_ratio": cpu_ratios},
        "parameters": {"aquamam": ours.parameter_count, "ipdf": ipdf.parameter_count},
    }
    return finish(out, "throughput", result)
