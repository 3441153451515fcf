"""Interleaved medians: the sides of a comparison take turns, so that a noisy machine troubles them alike.

Seconds are the clock's, or with `use_cpu_time` those that the process computed: on a machine that others use too, only
these can be compared.
"""

import json
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass

import torch

_clock: Callable[[], float] = time.perf_counter


def use_cpu_time() -> None:
    global _clock
    _clock = time.process_time


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One comparison: seconds of both sides, and how many times faster ours is. Or a quantity beside its limit."""

    name: str
    engine: str = "torch"  # that ran our side: torch, onnx, or none
    ours: float
    other: float
    against: str
    at_least: float = 1.0  # what the ratio should be
    rounds: int
    note: str = ""

    @property
    def ratio(self) -> float:
        return self.other / max(self.ours, 1e-9)


def compare(
    name: str,
    ours: Callable[[], object],
    against: str,
    other: Callable[[], object],
    *,
    at_least: float,
    rounds: int = 5,
    engine: str = "torch",
    other_scale: float = 1.0,
    note: str = "",
    steady: bool = False,
) -> Figure:
    """Median seconds of both, alternating, after one warm-up each.

    other_scale: multiplies the other side's time where it ran a share of the work. steady: for steps of a loop, each
    turn has a warm-up of its own, so that neither side finds the caches as the other left them.
    """
    ours(), other()
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for side, work in enumerate((ours, other)):
            if steady:
                work()
            times[side].append(_timed(work))
    mine, theirs = statistics.median(times[0]), statistics.median(times[1]) * other_scale
    told = {"name": name, "engine": engine, "against": against, "at_least": at_least, "note": note}
    return Figure(ours=mine, other=theirs, rounds=rounds, **told)


def at_most(name: str, value: float, limit: float, rounds: int, engine: str = "torch") -> Figure:
    """A quantity that must stay below its limit."""
    return Figure(name=name, engine=engine, ours=value, other=limit, against="its limit", rounds=rounds)


def median_seconds(work: Callable[[], object], rounds: int) -> float:
    work()
    return statistics.median(_timed(work) for _ in range(rounds))


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


def table(figures: list[Figure]) -> str:
    """Markdown that is a table in a terminal, too; what misses its target is marked."""
    rows = [("work", "engine", "ours", "other", "ratio", "target", "against"), *(_row(f) for f in figures)]
    wide = [max(len(row[k]) for row in rows) for k in range(len(rows[0]))]
    lines = ["| " + " | ".join(cell.ljust(n) for cell, n in zip(row, wide)) + " |" for row in rows]
    return "\n".join([lines[0], "|" + "|".join("-" * (n + 2) for n in wide) + "|", *lines[1:]])


def _row(f: Figure) -> tuple[str, ...]:
    missed = " missed" if f.ratio < f.at_least else ""
    return f.name, f.engine, f"{f.ours:.4f}", f"{f.other:.4f}", f"{f.ratio:.2f}x", f"{f.at_least:g}x{missed}", f.against


def json_lines(figures: list[Figure]) -> str:
    """A line a figure, with what it was measured on."""
    about = machine()
    return "\n".join(json.dumps(asdict(f) | {"ratio": f.ratio} | about) for f in figures)
