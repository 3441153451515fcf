"""Interleaved medians: the sides of a comparison take turns, so that a noisy machine troubles them alike."""

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch


@dataclass(frozen=True)
class Figure:
    """One comparison: seconds of both sides, and how many times faster ours is."""

    name: str
    ours_seconds: float
    other: str
    other_seconds: float
    ratio: float
    at_least: float
    rounds: int
    note: str = ""
    share_of_limit: float | None = None  # the FLOPs needed, at the rate of a large matrix product, over the time taken


def compare(
    name: str, ours: Callable[[], object], other_name: str, other: Callable[[], object], *, at_least: float, rounds: int = 5,
    other_scale: float = 1.0, note: str = "", flops: float = 0.0,
) -> Figure:  # fmt: skip
    """Median seconds of both, alternating, after one warm-up each. `other_scale` multiplies the other side's time where it ran a share of the work."""
    ours(), other()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, work in enumerate((ours, other)):
            times[side].append(_timed(work))
    mine, theirs = statistics.median(times[0]), statistics.median(times[1]) * other_scale
    share = flops / matrix_product_limit() / mine if flops else None
    return Figure(name, mine, other_name, theirs, theirs / mine, at_least, rounds, note, share)


def median_seconds(work: Callable[[], object], rounds: int) -> float:
    work()
    return statistics.median(_timed(work) for _ in range(rounds))


def matrix_product_limit(size: int = 2048) -> float:
    """FLOP/s of a large float32 matrix product, best of five: what this machine can do now."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    best = min(_timed(lambda: a @ b) for _ in range(6))
    return 2 * size**3 / best


def _timed(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def machine() -> dict[str, object]:
    """What the figures were measured on."""
    try:
        with open("/proc/cpuinfo") as file:
            cpu = next(line.split(":")[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.processor()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    return {
        "cpu": cpu,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
    }


def report(figures: list[Figure]) -> None:
    """A table, then one JSON line a figure."""
    print(f"{'work':58} {'ours':>10} {'other':>10} {'ratio':>8} {'target':>7}  against")
    for f in figures:
        print(
            f"{f.name:58} {f.ours_seconds:9.4f}s {f.other_seconds:9.4f}s {f.ratio:7.1f}x {f.at_least:6.1f}x  {f.other}"
        )
    for f in figures:
        print(json.dumps(asdict(f) | machine()))
