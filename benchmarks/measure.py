"""Interleaved medians: the sides of a comparison take turns, so that a noisy machine troubles them alike.

Seconds are the clock's, or with `use_cpu_time` those that the process computed: on a machine that others use too, only these can be compared.
"""

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace

import torch

_clock: Callable[[], float] = time.perf_counter


def use_cpu_time() -> None:
    global _clock
    _clock = time.process_time


@dataclass(frozen=True)
class Figure:
    """One comparison: seconds of both sides, and how many times faster ours is. Or another quantity beside its target."""

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
    other_scale: float = 1.0, note: str = "", flops: float = 0.0, steady: bool = False,
) -> Figure:  # fmt: skip
    """Median seconds of both, alternating, after one warm-up each. `other_scale` multiplies the other side's time where it ran a share of the work.

    steady: for steps of a loop, each turn has a warm-up of its own, so that neither side finds the caches as the other left them.
    """
    ours(), other()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, work in enumerate((ours, other)):
            if steady:
                work()
            times[side].append(_timed(work))
    mine, theirs = statistics.median(times[0]), statistics.median(times[1]) * other_scale
    share = flops / matrix_product_limit() / mine if flops else None
    return Figure(name, mine, other_name, theirs, theirs / mine, at_least, rounds, note, share)


def share_of_limit(name: str, work: Callable[[], object], flops: float, *, at_least: float, rounds: int) -> Figure:
    """Seconds of the work beside those that its FLOPs would take at the rate of a large matrix product, which takes turns with it and is
    repeated for about as long: what disturbs a long work now and then would seldom meet a short yardstick."""
    product, product_flops = large_product()
    repeats = max(1, round(flops / product_flops))
    f = compare(
        name,
        work,
        "its FLOPs at the limit",
        lambda: [product() for _ in range(repeats)],
        at_least=at_least,
        rounds=rounds,
        other_scale=flops / (repeats * product_flops),
    )
    return replace(f, share_of_limit=f.ratio)


def median_seconds(work: Callable[[], object], rounds: int) -> float:
    work()
    return statistics.median(_timed(work) for _ in range(rounds))


def large_product(size: int = 2048) -> tuple[Callable[[], object], float]:
    """A large float32 matrix product and its FLOPs: the yardstick of what the machine can do."""
    a, b = torch.randn(size, size), torch.randn(size, size)
    return lambda: a @ b, 2 * size**3


def matrix_product_limit() -> float:
    """FLOP/s of the large product, best of six: what this machine can do now."""
    product, flops = large_product()
    return flops / min(_timed(product) for _ in range(6))


def _timed(work: Callable[[], object]) -> float:
    start = _clock()
    work()
    return _clock() - start


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
        "clock": "CPU time" if _clock is time.process_time else "wall time",
        "torch": torch.__version__,
        "commit": commit,
        "date": time.strftime("%Y-%m-%d"),
    }


def report(figures: list[Figure]) -> None:
    """A table, then one JSON line a figure."""
    print(f"{'work':58} {'ours':>9} {'other':>9} {'ratio':>8} {'target':>8} {'limit':>6}  against")
    for f in figures:
        limit = f"{f.share_of_limit:6.0%}" if f.share_of_limit else " " * 6
        print(
            f"{f.name:58} {f.ours_seconds:9.4f} {f.other_seconds:9.4f} {f.ratio:7.2f}x {f.at_least:7.2f}x {limit}  {f.other}"
        )
    for f in figures:
        print(json.dumps(asdict(f) | machine()))
