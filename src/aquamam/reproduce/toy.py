"""The toy experiment (Section 4.1 of the paper): six viewpoints, 63 rotations, three systems judged by one test."""

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from aquamam.baselines.ipdf import IPDF, IPDFConfig
from aquamam.baselines.mog import AQuaMaMMoG, MoGConfig
from aquamam.checkpoints.checkpoint import save_model
from aquamam.errors import InputError
from aquamam.geometry.grid import cell_volume, grid_size
from aquamam.network.model import AQuaMaM, RotationModel
from aquamam.posterior.distribution import RotationDistribution
from aquamam.reproduce.fit_pairs import FAST, PAPER, PLAIN, Fit, FitConfig, Pairs, sentence_log_probs
from aquamam.reproduce.report import finish
from aquamam.reproduce.samples import draw, draw_curve, draw_shares, judge
from aquamam.training.presets import model_config

NAMES = {"aquamam": "AQuaMaM", "ipdf": "IPDF", "mog": "AQuaMaM-MoG"}
MOG_MODEL = MoGConfig(encoder="category", dim=64, heads=8, layers=3, hidden=256, components=512)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large the runs of the systems are."""

    aquamam: FitConfig
    ipdf: FitConfig
    mog: FitConfig
    negatives: int  # of IPDF, a viewpoint and step; the paper draws 4,095 for each of 128 samples
    level: int  # of the grid that normalises IPDF and that it is sampled from

    def __post_init__(self) -> None:
        grid_size(self.level)  # refuses levels that do not exist

    def reduced(self, system: str) -> bool:
        """Whether anything differs from the paper's run but the seed."""
        paper = SCALES["paper"]
        other_grid = system == "ipdf" and (self.negatives, self.level) != (paper.negatives, paper.level)
        return other_grid or replace(getattr(self, system), seed=0) != getattr(paper, system)


_QUICK = replace(PLAIN, lr=1e-3, beta2=0.99)
_QUICK_IPDF, _QUICK_MOG = replace(_QUICK, steps=1500), replace(_QUICK, steps=400)
# IPDF's own recipe: 1,000 steps of warm-up, then a cosine
_COSINE: Any = {"decay": "cosine", "warm_up": 1 / 300, "final": 0.0}
_IPDF = replace(PLAIN, batches="sampled", steps=300_000, lr=1e-4, beta2=0.999, **_COSINE)
SCALES = {
    "cpu": Scale(aquamam=FAST, ipdf=_QUICK_IPDF, mog=_QUICK_MOG, negatives=511, level=4),
    "paper": Scale(aquamam=PAPER, ipdf=_IPDF, mog=PAPER, negatives=4095, level=5),
}


def toy_pairs(viewpoints: int = 6) -> Pairs:
    """The original's data: viewpoint i has 2^i rotations, drawn in order from NumPy's legacy generator with seed 2010.

    SciPy's `Rotation.random` makes four normal numbers a unit quaternion; doing so here does not depend on its version.
    """
    random = np.random.RandomState(2010)
    normal = [random.normal(size=(2**i, 4)) for i in range(viewpoints)]
    return Pairs.uniform([torch.from_numpy(q / np.linalg.norm(q, axis=1, keepdims=True)) for q in normal])


def new_model(system: str, pairs: Pairs, scale: Scale) -> RotationModel:
    """The paper's network of that system."""
    if system == "aquamam":
        return AQuaMaM(model_config("toy"))
    if system == "mog":
        return AQuaMaMMoG(MOG_MODEL)
    grid: dict[str, Any] = {"level": scale.level, "normaliser": "truth", "samples": "points"}
    return IPDF(IPDFConfig(encoder="category", categories=pairs.categories, negatives=scale.negatives, **grid))


def run_system(system: str, pairs: Pairs, out: Path, scale: Scale, samples: int, device: str = "cpu") -> dict[str, Any]:
    """Train a system, take its likelihood, judge its samples; writes the model and the figures, returns the numbers."""
    config, tag = getattr(scale, system), "" if system == "aquamam" else f"_{system}"
    torch.manual_seed(config.seed)
    model = new_model(system, pairs, scale)
    fit = Fit(model, pairs, config, out / f"{system}_state.pt", device).run(f"toy, {NAMES[system]}")
    with torch.no_grad():
        likelihood, posterior = LIKELIHOODS[system](model, pairs, fit)
        started, cpu = time.monotonic(), time.process_time()
        judged = judge(pairs, draw(posterior, pairs, samples, config.seed), config.seed)
        sampling, cpu = time.monotonic() - started, time.process_time() - cpu
    for row, exact in zip(judged["viewpoints"], likelihood.pop("viewpoints", ())):
        row.update(exact)
    result = {
        **likelihood,
        **judged,
        **fit.costs(),
        "seconds": fit.seconds + sampling,
        "training_seconds": fit.seconds,
        "sampling_seconds": sampling,
        "cpu_seconds": fit.cpu_seconds + cpu,
        "measure": "pi^2",
        "reduced": scale.reduced(system),
    }
    info = {"experiment": "toy", **{key: result[key] for key in ("log_likelihood", "steps", "seed")}}
    save_model(model, out / f"{'model' if system == 'aquamam' else system}.safetensors", info)
    draw_shares(out / f"toy_proportions{tag}.png", NAMES[system], judged["viewpoints"])
    if system != "mog":
        # while the closest two of viewpoint 5's 32 rotations are not told apart, each gets half of its probability
        close = {"two rotations, 0.00017 apart in $q_x$, taken for one": math.log(2) * 2 / 32 / pairs.categories}
        notes = close if system == "aquamam" else {}
        draw_curve(out / f"toy_curve{tag}.png", fit.curve, result["least_training_loss"], notes, system=NAMES[system])
    return result


def _aquamam(model: AQuaMaM, pairs: Pairs, fit: Fit) -> tuple[dict[str, Any], RotationDistribution]:
    """With what the model itself says: probability outside the true sentences, and total variation inside."""
    weight, category = pairs.weight[pairs.real], pairs.real.nonzero()[:, 1]
    log_p = sentence_log_probs(model, pairs).double()
    shares = [log_p[category == i].exp() for i in range(pairs.categories)]
    factor, sentence = float((weight * pairs.log_factor(model.cells)).sum()), pairs.ceiling(model.cells)
    return {
        "log_likelihood": float((weight * log_p).sum()) + factor,
        "ceiling": sentence + factor,
        "least_training_loss": -sentence,
        "viewpoints": [
            {"stray": float(1 - p.sum()), "exact_total_variation": float((p - 1 / len(p)).abs().sum() / 2)}
            for p in shares
        ],
        "bins": model.config.bins,
    }, model.posterior(torch.arange(pairs.categories))


def _ipdf(model: IPDF, pairs: Pairs, fit: Fit) -> tuple[dict[str, Any], RotationDistribution]:
    """As the paper does, on the grid turned to each truth, and on the grid as it stands, which is also sampled."""
    real, volume = pairs.real, cell_volume(model.config.level)
    category = real.nonzero()[:, 1]
    turned = model.posterior(category).log_prob(pairs.q[real]).double()
    standing = model.posterior(torch.arange(pairs.categories), normaliser="grid")
    # what the turned grids give to the cells of the true rotations, which nothing forbids to sum to more than one
    claimed = torch.zeros(pairs.categories).double().index_add(0, category, turned.exp() * volume)
    last = fit.curve[-max(1, len(fit.curve) // 20) :]  # negatives make single steps noisy
    least = -math.log((1 + model.config.negatives) / math.pi**2)
    above = sum(last) / len(last) - least
    ambiguity = pairs.mean(real.sum(0).double().log().expand(real.shape))
    return {
        "log_likelihood": float((pairs.weight[real] * turned).sum()),
        "ceiling": -math.log(volume),
        "honest_ceiling": -math.log(volume) - ambiguity,
        "log_likelihood_on_standing_grid": pairs.mean(standing.log_prob(pairs.q)),
        "claimed_mass": [round(mass, 2) for mass in claimed.tolist()],
        "least_training_loss": least,
        "training_loss_above_least": above,
        "convergence": "is near it" if above < 0.1 else "has not converged, so its samples say little about IPDF",
        "grid": grid_size(model.config.level),
        "negatives": model.config.negatives,
    }, standing


def _mog(model: AQuaMaMMoG, pairs: Pairs, fit: Fit) -> tuple[dict[str, Any], RotationDistribution]:
    posterior = model(torch.arange(pairs.categories))
    log_p = posterior.log_prob(pairs.q)
    each = [float(log_p[pairs.real[:, i], i].mean()) for i in range(pairs.categories)]
    values = {"log_likelihood": pairs.mean(log_p), "ceiling": math.inf, "log_likelihood_by_viewpoint": each}
    return {**values, "components": model.config.components}, posterior


LIKELIHOODS: dict[str, Any] = {"aquamam": _aquamam, "ipdf": _ipdf, "mog": _mog}


def run(
    out: Path,
    scale: Scale = SCALES["cpu"],
    *,
    samples: int = 40_000,
    systems: Sequence[str] = ("aquamam",),
    device: str = "cpu",
) -> dict[str, Any]:
    """The whole experiment; returns what OUT/toy.json holds: one system's result, and others under their names.

    device: where the models are fitted.
    """
    if not systems or any(name not in NAMES for name in systems):
        raise InputError(f"systems must be some of {', '.join(NAMES)}, got {', '.join(systems) or 'none'}.")
    pairs = toy_pairs()
    results = {name: run_system(name, pairs, out, scale, samples, device) for name in systems}
    main = "aquamam" if "aquamam" in results else systems[0]
    others = {name: result for name, result in results.items() if name != main}
    parts = {"toy": {}, **{f"toy-{name}": result for name, result in results.items()}}
    return finish(out, "toy", {"system": main, **results[main], **others}, parts)
