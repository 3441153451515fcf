"""Counters in Prometheus' text format (version 0.0.4), without a library."""

import bisect
import math
import threading
from collections.abc import Callable

Number = float | int
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Counter:
    """A number that only grows, for each set of labels."""

    kind = "counter"

    def __init__(self, name: str, help: str, labels: tuple[str, ...] = ()):
        self.name, self.help, self.labels = name, help, labels
        self.values: dict[tuple[str, ...], float] = {} if labels else {(): 0.0}
        self.lock = threading.Lock()

    def add(self, *labels: str, by: Number = 1) -> None:
        with self.lock:
            self.values[labels] = self.values.get(labels, 0.0) + by

    def lines(self) -> list[str]:
        with self.lock:
            return [f"{self.name}{_braces(self.labels, key)} {_number(v)}" for key, v in sorted(self.values.items())]


class Gauge:
    """A number that is asked for when it is read."""

    kind = "gauge"

    def __init__(self, name: str, help: str, read: Callable[[], Number]):
        self.name, self.help, self.read = name, help, read

    def lines(self) -> list[str]:
        return [f"{self.name} {_number(self.read())}"]


class Histogram:
    """How often a value was at most each bound, for each set of labels."""

    kind = "histogram"

    def __init__(self, name: str, help: str, bounds: tuple[Number, ...], labels: tuple[str, ...] = ()):
        self.name, self.help, self.bounds, self.labels = name, help, bounds, labels
        self.counts: dict[tuple[str, ...], list[int]] = {}
        self.sums: dict[tuple[str, ...], float] = {}
        self.lock = threading.Lock()

    def add(self, value: Number, *labels: str) -> None:
        with self.lock:
            counts = self.counts.setdefault(labels, [0] * (len(self.bounds) + 1))
            counts[bisect.bisect_left(self.bounds, value)] += 1
            self.sums[labels] = self.sums.get(labels, 0.0) + value

    def lines(self) -> list[str]:
        found = []
        with self.lock:
            for key, counts in sorted(self.counts.items()):
                total = 0
                for bound, count in zip((*self.bounds, math.inf), counts):
                    total += count
                    braces = _braces((*self.labels, "le"), (*key, _number(bound)))
                    found.append(f"{self.name}_bucket{braces} {total}")
                found.append(f"{self.name}_sum{_braces(self.labels, key)} {_number(self.sums[key])}")
                found.append(f"{self.name}_count{_braces(self.labels, key)} {total}")
        return found


def render(metrics: list[Counter | Gauge | Histogram]) -> str:
    """All of them as text."""
    lines = []
    for metric in metrics:
        lines += [f"# HELP {metric.name} {metric.help}", f"# TYPE {metric.name} {metric.kind}", *metric.lines()]
    return "\n".join(lines) + "\n"


def _braces(names: tuple[str, ...], values: tuple[str, ...]) -> str:
    if not names:
        return ""
    quoted = (v.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n") for v in values)
    return "{" + ",".join(f'{name}="{value}"' for name, value in zip(names, quoted)) + "}"


def _number(value: Number) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(int(value)) if value == int(value) else repr(float(value))
