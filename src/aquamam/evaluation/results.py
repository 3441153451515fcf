"""What an evaluation tells: figures, curves and cases as plain values."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from scipy.stats import kstest
from torch import Tensor

from aquamam.evaluation import metrics
from aquamam.files import finite
from aquamam.geometry.rotations import LOG_UNIFORM

LEVELS = (0.5, 0.9, 0.95)

# One row an image: index, label, listed, log_likelihood, truth, spread, found, pit, held50, held90, held95, and
# prediction.S, error.S, plain.S of each strategy S.
Columns = dict[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Errors:
    """Errors of one way to predict; degrees and shares."""

    mean_error_deg: float
    median_error_deg: float
    acc15: float
    acc30: float

    @classmethod
    def of(cls, error: Tensor) -> "Errors":
        return cls(
            mean_error_deg=math.degrees(error.mean()),
            median_error_deg=math.degrees(error.quantile(0.5)),
            acc15=float((error <= math.radians(15)).double().mean()),
            acc30=float((error <= math.radians(30)).double().mean()),
        )


@dataclass(frozen=True, kw_only=True)
class Figures(Errors):
    """All figures of a set of images; errors are the first strategy's; what needs samples is NaN without them."""

    images: int
    mean_log_likelihood: float
    log_likelihood_se: float  # standard error of the mean
    median_log_likelihood: float
    spread_deg: float = math.nan
    pit_mean: float = math.nan  # 1/2 if calibrated; above it the model is too sure, below it not sure enough
    pit_ks: float = math.nan
    pit_p: float = math.nan  # chance of such a KS distance if calibrated
    coverage50: float = math.nan
    coverage90: float = math.nan
    coverage95: float = math.nan
    coverage50_se: float = math.nan
    coverage90_se: float = math.nan
    coverage95_se: float = math.nan
    held50: float = math.nan  # share of truths in the conformal sets, where the model has any
    held90: float = math.nan
    held95: float = math.nan

    @classmethod
    def of_columns(cls, columns: Columns, strategy: str) -> "Figures":
        log_p = columns["log_likelihood"]
        n = len(log_p)
        values: dict[str, Any] = {}
        if "pit" in columns:
            pit = columns["pit"]
            distance, p_value = kstest(pit.numpy(), "uniform")
            values = {"spread_deg": math.degrees(columns["spread"].mean()), "pit_mean": float(pit.mean())}
            values |= {"pit_ks": float(distance), "pit_p": float(p_value)}
            for level, share, error in zip(LEVELS, *(part.tolist() for part in metrics.coverage(pit, LEVELS))):
                values |= {f"coverage{round(100 * level)}": share, f"coverage{round(100 * level)}_se": error}
            values |= {name: float(held.double().mean()) for name, held in columns.items() if name.startswith("held")}
        return cls(
            images=n,
            mean_log_likelihood=float(log_p.mean()),
            log_likelihood_se=float(log_p.std(correction=0)) / math.sqrt(n),
            median_log_likelihood=float(log_p.quantile(0.5)),
            **asdict(Errors.of(columns[f"error.{strategy}"])),
            **values,
        )

    @classmethod
    def mean(cls, parts: Sequence["Figures"]) -> "Figures":
        """Every figure averaged over classes, which count alike; standard errors and p-values have no such mean."""
        values: dict[str, Any] = {}
        for field in fields(cls):
            each = [getattr(part, field.name) for part in parts]
            averages = not field.name.endswith("_se") and field.name != "pit_p"
            values[field.name] = float(np.mean(each)) if averages else math.nan
        return cls(**{**values, "images": sum(part.images for part in parts)})


@dataclass(frozen=True, kw_only=True)
class Throughput:
    """What one process did in a second, images' encoding included; medians over batches."""

    likelihoods: float  # rotations scored
    predictions: dict[str, float]  # images, by strategy
    samples: float  # rotations drawn
    batch_size: int
    device: str
    threads: int
    processes: int


@dataclass(frozen=True, kw_only=True)
class Case:
    """One image and what became of it; quaternions xyzw."""

    index: int
    name: str
    label: str
    log_likelihood: float
    error_deg: float
    plain_error_deg: float
    found: float  # share of samples near a truth; NaN without samples
    truth: tuple[float, ...]
    prediction: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Everything that `aquamam evaluate` tells."""

    figures: Figures
    classes: dict[str, Figures]
    class_mean: Figures
    strategies: dict[str, Errors]  # symmetry-aware where symmetries are known
    plain: dict[str, Errors]  # to the pictured rotation alone
    symmetries: dict[str, str]  # class -> "known", "listed" (equivalent truths in the data) or "unknown"
    ceiling: float
    throughput: Throughput
    samples: int
    seed: int
    worst: tuple[Case, ...]  # by error
    unlikely: tuple[Case, ...]  # by log-likelihood
    unreadable: tuple[str, ...]
    columns: Columns  # the numbers of each image, in the order of the data

    @property
    def symmetric(self) -> bool:
        """Whether knowing symmetries makes any difference here."""
        columns = self.columns
        return any(bool((columns[f"plain.{s}"] - columns[f"error.{s}"] > 1e-6).any()) for s in self.strategies)

    @property
    def verdict(self) -> str:
        """Calibration in words."""
        figures = self.figures
        if math.isnan(figures.pit_ks):
            return "not measured, as no samples were drawn"
        if figures.pit_p > 0.01:
            return "no miscalibration seen"
        lean = (figures.pit_mean - 0.5) * math.sqrt(12 * figures.images)  # in standard errors
        side = "too sure" if lean > 2 else "not sure enough" if lean < -2 else "off, though on no one side"
        return f"slightly {side}" if figures.pit_ks < 0.03 else side

    @cached_property
    def curves(self) -> dict[str, Any]:
        """Points of the curves: shares of errors within angles, histograms, coverage at every level."""
        angles, log_p = np.geomspace(0.1, 180, 121), self.columns["log_likelihood"].numpy()
        errors = {name: np.degrees(self.columns[f"error.{name}"].numpy()) for name in self.strategies}
        low, high = np.quantile(log_p, 0.002), log_p.max()
        edges = np.linspace(low, max(high, low + 1e-3), min(60, round(2 * len(log_p) ** (1 / 3)) + 2) + 1)
        shares = {k: [float((e <= a).mean()) for a in angles] for k, e in errors.items()}
        counts = np.histogram(log_p.clip(low, high), edges)[0]  # the lowest two in a thousand stand in the first bar
        curves: dict[str, Any] = {
            "error": {"angles_deg": angles.tolist(), "shares": shares},
            "log_likelihood": {"edges": edges.tolist(), "counts": counts.tolist()},
        }
        if "pit" in self.columns:
            pit = self.columns["pit"]
            levels = np.linspace(0, 1, 41)
            share, error = metrics.coverage(pit, levels.tolist())
            curves["pit"] = {"counts": np.histogram(pit.numpy(), 20 if len(pit) >= 400 else 10, (0, 1))[0].tolist()}
            curves["coverage"] = {"levels": levels.tolist(), "shares": share.tolist(), "se": error.tolist()}
        return curves

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; what is not finite is null."""
        told = asdict(replace(self, columns={}))
        del told["columns"]
        figures, plain = told.pop("figures"), told.pop("plain")
        told["strategies"] = {name: {**errors, "plain": plain[name]} for name, errors in told["strategies"].items()}
        return finite({**figures, **told, "uniform": LOG_UNIFORM, "measure": "pi^2", "curves": self.curves})
