"""The toy experiment (Section 4.1 of the paper): six viewpoints, 63 rotations, and how well a model's samples match the truth."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from scipy.stats import chisquare
from torch import Tensor
from tqdm import tqdm

from aquamam.checkpoint import save_model
from aquamam.errors import InputError
from aquamam.experiments import toy_figures
from aquamam.experiments.fit import FAST, Fit, FitConfig
from aquamam.experiments.pairs import Pairs, Sentences
from aquamam.experiments.results import write_result
from aquamam.model import AQuaMaM
from aquamam.presets import model_config
from aquamam.rotations import geodesic_angle

VIEWPOINTS = 6
PAPER = {"log_likelihood": 27.12, "wrong_sentences": 23, "samples": 40_000, "mean_distance_deg": 0.04}


def toy_pairs(viewpoints: int = VIEWPOINTS) -> Pairs:
    """The original's data: viewpoint i has 2^i rotations, drawn in order from NumPy's legacy generator with seed 2010.

    SciPy's `Rotation.random` makes four normal numbers a unit quaternion; doing so here does not depend on its version.
    """
    random = np.random.RandomState(2010)
    rotations = []
    for i in range(viewpoints):
        q = random.normal(size=(2**i, 4))
        rotations.append(torch.from_numpy(q / np.linalg.norm(q, axis=1, keepdims=True)))
    return Pairs.uniform(rotations)


@dataclass(frozen=True, eq=False)
class Drawn:
    """Samples from the hierarchical model: a viewpoint, then a rotation from the model's distribution for it."""

    category: Int[Tensor, "samples"]
    q: Float[Tensor, "samples 4"]
    wrong: (
        Bool[Tensor, "samples"] | None
    )  # whether the sentence is of no true rotation; None where there are no sentences


def draw(model: AQuaMaM, sentences: Sentences, count: int, seed: int) -> Drawn:
    """Sample as the paper does (Listing 3): bins given values drawn in the bins before, then a point of the cell."""
    if count < 1:
        raise InputError(f"samples must be a positive whole number, got {count}.")
    generator = torch.Generator().manual_seed(seed)
    pairs, cells = sentences.pairs, sentences.cells
    counts = torch.randint(pairs.categories, (count,), generator=generator).bincount(minlength=pairs.categories)
    chart, cell = [], []
    with torch.no_grad():
        posterior = model(torch.arange(pairs.categories))
        # every viewpoint gets the largest of the counts, and the surplus is dropped
        with tqdm(total=count, desc="sample", unit="sample", disable=None) as bar:
            for part in torch.arange(int(counts.max())).split(200):
                drawn = posterior.sentences(len(part), generator=generator)
                kept = part[:, None] < counts
                chart.append(torch.where(kept, drawn.chart, -1))
                cell.append(drawn.cell)
                bar.update(int(kept.sum()))
    charts, all_cells = torch.cat(chart).T, torch.cat(cell).transpose(0, 1)
    kept = charts >= 0
    category = torch.arange(pairs.categories)[:, None].expand_as(kept)[kept]
    charts, all_cells = charts[kept], all_cells[kept]
    q = cells.chart.join(charts, cells.uniform(all_cells, generator))
    true = (category[:, None] == pairs.category) & (charts[:, None] == sentences.point.chart)
    true &= (all_cells[:, None] == sentences.cell).all(-1)
    return Drawn(category, q, ~true.any(1))


def judge(pairs: Pairs, drawn: Drawn, seed: int = 0) -> dict[str, Any]:
    """How samples of any system compare with the truth: distances to the nearest mode, and the shares of the modes."""
    distance = torch.zeros(len(drawn.q), dtype=torch.float64)
    viewpoints = []
    random = np.random.default_rng(seed)
    for i in range(pairs.categories):
        mine = drawn.category == i
        angles = geodesic_angle(drawn.q[mine].double()[:, None], pairs.of(i)[None])
        distance[mine], mode = angles.min(1)
        counts = mode.bincount(minlength=angles.shape[1]).numpy()
        viewpoints.append({"viewpoint": i, **compare_shares(counts, random)})
        viewpoints[-1]["mean_distance_deg"] = float(torch.rad2deg(distance[mine].mean()))
    result: dict[str, Any] = {"samples": len(drawn.q), "mean_distance_deg": float(torch.rad2deg(distance.mean()))}
    if drawn.wrong is not None:
        result["wrong_sentences"] = int(drawn.wrong.sum())
        result["wrong_sentences_near_a_mode"] = int((distance[drawn.wrong] < np.deg2rad(1)).sum())
    return {**result, "viewpoints": viewpoints}


def compare_shares(counts: np.ndarray, random: np.random.Generator, trials: int = 4000) -> dict[str, Any]:
    """Total variation between sampled and uniform shares beside what sampling the truth gives, and the chi-square p-value."""
    n, modes = int(counts.sum()), len(counts)
    truth = np.full(modes, 1 / modes)
    simulated = np.abs(random.multinomial(n, truth, size=trials) / max(n, 1) - truth).sum(1) / 2
    return {
        "samples": n,
        "counts": counts.tolist(),
        "total_variation": float(np.abs(counts / max(n, 1) - truth).sum() / 2),
        "total_variation_of_truth": float(simulated.mean()),
        "total_variation_of_truth_95": float(np.quantile(simulated, 0.95)),
        "p_value": float(chisquare(counts).pvalue) if modes > 1 and n else 1.0,
    }


def exact_shares(sentences: Sentences, log_p: Float[Tensor, "pairs"]) -> list[dict[str, Any]]:
    """What the model itself says, without sampling noise: probability outside the true sentences, and total variation inside."""
    rows = []
    for i in range(sentences.pairs.categories):
        p = log_p[sentences.pairs.category == i].double().exp()
        rows.append({"stray": float(1 - p.sum()), "exact_total_variation": float((p - 1 / len(p)).abs().sum() / 2)})
    return rows


def run_aquamam(pairs: Pairs, out: Path, config: FitConfig, samples: int) -> dict[str, Any]:
    """Train AQuaMaM, sample it, and draw the paper's Figures 5 and 6a."""
    torch.manual_seed(config.seed)
    model = AQuaMaM(model_config("toy"))
    sentences = Sentences(pairs, model.cells)
    fit = Fit(model, sentences, config, out / "state.safetensors")
    fit.run("toy")
    with torch.no_grad():
        log_p = sentences.log_probs(model.eval())
    started, cpu = time.monotonic(), time.process_time()
    judged = judge(pairs, draw(model, sentences, samples, config.seed), config.seed)
    sampling_seconds, sampling_cpu = time.monotonic() - started, time.process_time() - cpu
    for row, exact in zip(judged["viewpoints"], exact_shares(sentences, log_p)):
        row.update(exact)
    result = {
        "log_likelihood": float(sentences.mean(log_p + sentences.log_factor)),
        "ceiling": sentences.ceiling(),
        **judged,
        "seconds": fit.seconds + sampling_seconds,
        "training_seconds": fit.seconds,
        "sampling_seconds": sampling_seconds,
        "cpu_seconds": fit.cpu_seconds + sampling_cpu,
        "steps": len(fit.curve),
        "fit": asdict(config),
        "seed": config.seed,
        "threads": torch.get_num_threads(),
        "parameters": model.parameter_count,
        "bins": model.config.bins,
        "measure": "pi^2",
        "paper": PAPER,
    }
    info = {key: result[key] for key in ("log_likelihood", "ceiling", "steps", "seed")}
    save_model(model, out / "model.safetensors", {"experiment": "toy", **info})
    toy_figures.proportions(out / "toy_proportions.png", "AQuaMaM", judged["viewpoints"])
    # while the closest two of viewpoint 5's 32 rotations are not told apart, each gets half of its probability
    close = {"two rotations, 0.00017 apart in $q_x$, taken for one": np.log(2) * 2 / 32 / VIEWPOINTS}
    toy_figures.curve(out / "toy_curve.png", fit.curve, -float(sentences.mean(sentences.best())), close)
    return result


# Systems that can be run on the toy data. The first one's result is the top level of toy.json, the others stand under their names.
SYSTEMS: dict[str, Callable[[Pairs, Path, FitConfig, int], dict[str, Any]]] = {"aquamam": run_aquamam}


def run(
    out: Path, config: FitConfig = FAST, samples: int = 40_000, systems: tuple[str, ...] = ("aquamam",)
) -> dict[str, Any]:
    """The whole experiment; returns what OUT/toy.json holds."""
    unknown = [name for name in systems if name not in SYSTEMS]
    if unknown or not systems:
        raise InputError(f"systems must be some of {', '.join(SYSTEMS)}, got {', '.join(systems) or 'none'}.")
    if samples < 1:
        raise InputError(f"samples must be a positive whole number, got {samples}.")
    pairs = toy_pairs()
    results = {name: SYSTEMS[name](pairs, out, config, samples) for name in systems}
    main = "aquamam" if "aquamam" in results else systems[0]
    result = {"system": main, **results.pop(main), **results}
    write_result(out, "toy", result)
    (out / "state.safetensors").unlink(missing_ok=True)  # done: running again starts afresh
    return result
