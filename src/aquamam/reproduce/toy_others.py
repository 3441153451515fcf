"""The toy experiment's other systems: IPDF and AQuaMaM-MoG, judged by the same test of samples as AQuaMaM."""

import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from aquamam.baselines.base import Baseline
from aquamam.baselines.ipdf import IPDF, IPDFConfig
from aquamam.baselines.mog import AQuaMaMMoG, MoGConfig
from aquamam.checkpoints.checkpoint import save_model
from aquamam.posterior.distribution import RotationDistribution
from aquamam.errors import InputError
from aquamam.reproduce import toy_figures
from aquamam.reproduce.fit_pairs import PAPER as PAPER_RECIPE
from aquamam.reproduce.fit_pairs import BaselineFit, FitConfig
from aquamam.reproduce.judging import Drawn, judge
from aquamam.reproduce.pairs import Pairs
from aquamam.geometry.grid import cell_volume, grid_size

IPDF_PAPER = {"log_likelihood": 12.32, "ceiling": 12.38, "mean_distance_deg": 0.84, "parameters": 748_545}
MOG_PAPER = {"log_likelihood": 10.52}
MOG_MODEL = MoGConfig(encoder="category", dim=64, heads=8, layers=3, hidden=256, components=512)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large the other systems' runs are."""

    name: str
    ipdf: FitConfig
    negatives: int  # a viewpoint and step; the paper draws 4,095 for each of 128 samples
    level: int  # of the grid that normalises and is sampled from
    mog: FitConfig

    @property
    def ipdf_reductions(self) -> tuple[str, ...]:
        """What is smaller than in the paper, in words; empty at the paper's size."""
        told = []
        if self.ipdf.steps < 300_000:
            told.append(
                f"IPDF: {self.ipdf.steps:,} steps of the exact expected loss, rate {self.ipdf.lr:g}, instead of 300,000 batches at 1e-4."
            )
        if self.negatives < 4095:
            told.append(
                f"IPDF: {self.negatives:,} negatives for each viewpoint and step, shared by its rotations, instead of 4,095 for each sample."
            )
        if self.level < 5:
            told.append(
                f"IPDF: evaluated and sampled on {grid_size(self.level):,} rotations instead of 2,359,296; the ceiling is {_ceiling(self.level):.2f} instead of 12.38."
            )
        return tuple(told)  # fmt: skip

    @property
    def mog_reductions(self) -> tuple[str, ...]:
        """What is smaller than in the paper, in words; empty at the paper's size."""
        if self.mog.steps >= PAPER_RECIPE.steps:
            return ()
        return (f"AQuaMaM-MoG: {self.mog.steps:,} steps of the exact expected loss at rates up to {self.mog.lr:g}, instead of up to 195,312 batches at 1e-4; its size is the paper's.",)  # fmt: skip


CPU = Scale(
    name="cpu",
    ipdf=FitConfig(steps=1500, lr=1e-3, beta2=0.99, eps=1e-8, component_rate=1.0, head_rate=1.0),
    negatives=511,
    level=4,
    mog=FitConfig(steps=400, lr=1e-3, beta2=0.99, eps=1e-8, component_rate=1.0, head_rate=1.0),
)
PAPER = Scale(
    name="paper",
    ipdf=FitConfig(
        batches="sampled",
        steps=300_000,
        lr=1e-4,
        decay="cosine",
        beta2=0.999,
        eps=1e-8,
        component_rate=1.0,
        head_rate=1.0,
    ),
    negatives=4095,
    level=5,
    mog=PAPER_RECIPE,
)
SCALES = {"cpu": CPU, "paper": PAPER}


def _ceiling(level: int) -> float:
    return -math.log(cell_volume(level))


def sample(posterior: RotationDistribution, count: int, seed: int) -> Drawn:
    """Draw from the hierarchical model: a viewpoint, then a rotation from the posterior's image of that number."""
    if count < 1:
        raise InputError(f"samples must be a positive whole number, got {count}.")
    generator = torch.Generator().manual_seed(seed)
    categories = posterior.batch_shape[0]
    counts = torch.randint(categories, (count,), generator=generator).bincount(minlength=categories)
    q = posterior.sample((int(counts.max()),), generator=generator)
    kept = torch.arange(len(q))[:, None] < counts
    category = torch.arange(categories).expand_as(kept)
    return Drawn(category[kept], q[kept], None)


def run_ipdf(pairs: Pairs, out: Path, scale: Scale, samples: int, device: str | None = None) -> dict[str, Any]:
    """Train IPDF, evaluate it as the paper does (grid turned to each truth) and on the grid as it stands, and sample the grid."""
    config = IPDFConfig(
        encoder="category", categories=pairs.categories, negatives=scale.negatives, level=scale.level, normaliser="truth", samples="points",
    )  # fmt: skip
    torch.manual_seed(scale.ipdf.seed)
    model = IPDF(config)
    fit = _fitted(model, pairs, scale.ipdf, out / "ipdf_state.safetensors", "toy, IPDF", device)
    viewpoints = torch.arange(pairs.categories)
    with torch.no_grad():
        turned = model.posterior(pairs.category).log_prob(pairs.q)
        standing = model.posterior(viewpoints, normaliser="grid")
        q, row = pairs.side_by_side()
        fixed = standing.log_prob(q)[row, pairs.category]
        # what the turned grids give to the cells of the true rotations, which nothing forbids to sum to more than one
        claimed = turned.double().exp() * cell_volume(scale.level)
        judged, drawing = _judged(pairs, standing, samples, scale.ipdf.seed)
    least = -math.log((1 + scale.negatives) / math.pi**2)
    last = fit.curve[-max(1, len(fit.curve) // 20) :]  # negatives make single steps noisy
    ambiguity = float((pairs.weight * pairs.counts().double().log()).sum())
    result = {
        "log_likelihood": _mean(pairs, turned),
        "ceiling": _ceiling(scale.level),
        "honest_ceiling": _ceiling(scale.level) - ambiguity,
        "log_likelihood_on_standing_grid": _mean(pairs, fixed),
        "claimed_mass": [float(claimed[pairs.category == i].sum()) for i in viewpoints.tolist()],
        **judged,
        "training_loss": sum(last) / len(last),
        "least_training_loss": least,
        "grid": grid_size(scale.level),
        "negatives": scale.negatives,
        **_costs(model, fit, drawing),
        "reductions": list(scale.ipdf_reductions),
        "paper": IPDF_PAPER,
    }
    save_model(model, out / "ipdf.safetensors", {"experiment": "toy", "log_likelihood": result["log_likelihood"]})
    toy_figures.proportions(out / "toy_proportions_ipdf.png", "IPDF", judged["viewpoints"])
    toy_figures.curve(out / "toy_curve_ipdf.png", fit.curve, least, system="IPDF", what="training loss")
    return result


def run_mog(pairs: Pairs, out: Path, scale: Scale, samples: int, device: str | None = None) -> dict[str, Any]:
    """Train AQuaMaM-MoG and sample it."""
    torch.manual_seed(scale.mog.seed)
    model = AQuaMaMMoG(MOG_MODEL)
    fit = _fitted(model, pairs, scale.mog, out / "mog_state.safetensors", "toy, MoG", device)
    with torch.no_grad():
        posterior = model(torch.arange(pairs.categories))
        q, row = pairs.side_by_side()
        log_p = posterior.log_prob(q)[row, pairs.category]
        judged, drawing = _judged(pairs, posterior, samples, scale.mog.seed)
    result = {
        "log_likelihood": _mean(pairs, log_p),
        "ceiling": math.inf,
        "log_likelihood_by_viewpoint": [float(log_p[pairs.category == i].mean()) for i in range(pairs.categories)],
        **judged,
        **_costs(model, fit, drawing),
        "components": model.config.components,
        "reductions": list(scale.mog_reductions),
        "paper": MOG_PAPER,
    }
    save_model(model, out / "mog.safetensors", {"experiment": "toy", "log_likelihood": result["log_likelihood"]})
    toy_figures.proportions(out / "toy_proportions_mog.png", "AQuaMaM-MoG", judged["viewpoints"])
    return result


def _fitted(
    model: Baseline, pairs: Pairs, config: FitConfig, state: Path, title: str, device: str | None
) -> BaselineFit:
    fit = BaselineFit(model, pairs, config, state, device)
    fit.run(title)
    model.eval()
    return fit


def _judged(pairs: Pairs, posterior: RotationDistribution, samples: int, seed: int) -> tuple[dict[str, Any], float]:
    started = time.monotonic()
    judged = judge(pairs, sample(posterior, samples, seed), seed)
    return judged, time.monotonic() - started


def _costs(model: Baseline, fit: BaselineFit, drawing: float) -> dict[str, Any]:
    return {
        "training_seconds": fit.seconds,
        "sampling_seconds": drawing,
        "cpu_seconds": fit.cpu_seconds,
        "steps": len(fit.curve),
        "fit": asdict(fit.config),
        "parameters": model.parameter_count,
        "measure": "pi^2",
    }


def _mean(pairs: Pairs, log_p: Tensor) -> float:
    return float((pairs.weight * log_p.double()).sum())
