"""The toy experiment (Section 4.1 of the paper): six viewpoints, 63 rotations, and how well a model's samples match the truth."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from aquamam.checkpoints.checkpoint import save_model
from aquamam.errors import InputError
from aquamam.reproduce import toy_figures
from aquamam.reproduce.fit_pairs import FAST, Fit, FitConfig
from aquamam.reproduce.judging import Drawn, judge
from aquamam.reproduce.pairs import Pairs, Sentences
from aquamam.reproduce.sections import Figure, Row, Section, finish
from aquamam.reproduce.toy_others import CPU, Scale, run_ipdf, run_mog
from aquamam.network.model import AQuaMaM
from aquamam.training.presets import model_config

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


def exact_shares(sentences: Sentences, log_p: Float[Tensor, "pairs"]) -> list[dict[str, Any]]:
    """What the model itself says, without sampling noise: probability outside the true sentences, and total variation inside."""
    rows = []
    for i in range(sentences.pairs.categories):
        p = log_p[sentences.pairs.category == i].double().exp()
        rows.append({"stray": float(1 - p.sum()), "exact_total_variation": float((p - 1 / len(p)).abs().sum() / 2)})
    return rows


def run_aquamam(pairs: Pairs, out: Path, config: FitConfig, samples: int, device: str | None = None) -> dict[str, Any]:
    """Train AQuaMaM, sample it, and draw the paper's Figures 5 and 6a."""
    torch.manual_seed(config.seed)
    model = AQuaMaM(model_config("toy"))
    sentences = Sentences(pairs, model.cells)
    fit = Fit(model, sentences, config, out / "state.safetensors", device)
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


SYSTEMS = (
    "aquamam",
    "ipdf",
    "mog",
)  # the first one's result is the top level of toy.json, the others stand under their names
FILES = ("state.safetensors", "ipdf_state.safetensors", "mog_state.safetensors")


def run(
    out: Path,
    config: FitConfig = FAST,
    samples: int = 40_000,
    systems: tuple[str, ...] = ("aquamam",),
    scale: Scale = CPU,
    device: str | None = None,
) -> dict[str, Any]:
    """The whole experiment; returns what OUT/toy.json holds. device: where the models are fitted, the CPU by default."""
    unknown = [name for name in systems if name not in SYSTEMS]
    if unknown or not systems:
        raise InputError(f"systems must be some of {', '.join(SYSTEMS)}, got {', '.join(systems) or 'none'}.")
    if samples < 1:
        raise InputError(f"samples must be a positive whole number, got {samples}.")
    pairs = toy_pairs()
    results = {}
    for name in systems:
        if name == "aquamam":
            results[name] = run_aquamam(pairs, out, config, samples, device)
        else:
            results[name] = {"ipdf": run_ipdf, "mog": run_mog}[name](pairs, out, scale, samples, device)
    main = "aquamam" if "aquamam" in results else systems[0]
    told = section(results)
    result = finish(out, told, {"system": main, **results[main], **{k: v for k, v in results.items() if k != main}})
    for name in FILES:
        (out / name).unlink(missing_ok=True)  # done: running again starts afresh
    return result


NAMES = {"aquamam": "AQuaMaM", "ipdf": "IPDF", "mog": "AQuaMaM-MoG"}


def diverges(result: dict[str, Any]) -> str:
    """The verdict on the sampling distribution: the worst viewpoint's total variation beside what sampling the truth gives."""
    rows = [row for row in result["viewpoints"] if len(row["counts"]) > 1]
    worst = max(rows, key=lambda row: row["total_variation"] / max(row["total_variation_of_truth"], 1e-12))
    failed = sum(row["p_value"] < 0.001 for row in rows)
    return (
        f"{failed} of {len(rows)} viewpoints with several rotations fail the chi-square test at p < 0.001; the worst, viewpoint "
        f"{worst['viewpoint']}, has a total variation of {worst['total_variation']:.3f} where sampling the truth gives "
        f"{worst['total_variation_of_truth']:.3f}"
    )


def viewpoint_rows(name: str, result: dict[str, Any]) -> list[tuple[str, ...]]:
    """The test of samples viewpoint by viewpoint, as a table."""
    exact = "stray" in result["viewpoints"][0]
    rows = [(NAMES[name], "modes", "samples", "total variation", "of truth", "ratio", "chi-square p", *(("exact TV", "stray mass") if exact else ("distance (deg)",)))]  # fmt: skip
    for v in result["viewpoints"]:
        ratio = v["total_variation"] / v["total_variation_of_truth"] if v["total_variation_of_truth"] else 0.0
        last = (
            (f"{v['exact_total_variation']:.1e}", f"{v['stray']:.1e}") if exact else (f"{v['mean_distance_deg']:.3f}",)
        )
        rows.append(
            (
                f"viewpoint {v['viewpoint']}", str(len(v["counts"])), f"{v['samples']:,}", f"{v['total_variation']:.4f}",
                f"{v['total_variation_of_truth']:.4f}", f"{ratio:.2f}", f"{v['p_value']:.3f}", *last,
            )
        )  # fmt: skip
    return rows


def about_ipdf(result: dict[str, Any]) -> list[str]:
    """Whether IPDF was trained far enough to be judged, and what its way of evaluation can hide."""
    above = result["training_loss"] - result["least_training_loss"]
    verdict = "has not converged, so its samples say little about a converged IPDF" if above > 0.1 else "is near it"
    masses = ", ".join(f"{m:.2f}" for m in result["claimed_mass"])
    too_much = sum(m > 1.02 for m in result["claimed_mass"])
    claim = (
        f"More than 1 cannot be a distribution, and {too_much} of the sums are: the likelihood flatters IPDF there"
        if too_much
        else "A sum above 1 would show that the likelihood flatters IPDF; none is here"
    )
    return [
        f"IPDF's training loss is {above:.2f} nats above its theoretical minimum: this run {verdict}.",
        "Each likelihood of IPDF is taken on a grid turned to the true rotation, on which the viewpoint's other rotations are no grid points. The "
        f"probabilities that these grids give to the true rotations' cells sum to {masses} for the six viewpoints. {claim}. Samples come from one "
        "standing grid.",
    ]


def section(results: dict[str, dict[str, Any]]) -> Section:
    """The toy experiment in words."""
    rows: list[Row] = []
    text: list[str] = []
    reductions: list[str] = []
    figures: list[Figure] = []
    for name, r in results.items():
        system, paper = NAMES[name], r["paper"]
        ceiling = f"{r['ceiling']:.4f}" if np.isfinite(r["ceiling"]) else "none"
        rows.append(Row(what=f"{system}: mean log-likelihood", here=f"{r['log_likelihood']:.4f}", paper=f"{paper['log_likelihood']}", ceiling=ceiling))  # fmt: skip
        if name == "ipdf":
            rows.append(Row(what="IPDF: the same on the grid as it stands", here=f"{r['log_likelihood_on_standing_grid']:.4f}", ceiling=f"{r['honest_ceiling']:.4f}"))  # fmt: skip
        distance = {"paper": str(paper["mean_distance_deg"])} if "mean_distance_deg" in paper else {}
        rows.append(Row(what=f"{system}: mean distance of samples to a mode (deg)", here=f"{r['mean_distance_deg']:.4f}", **distance))  # fmt: skip
        if "wrong_sentences" in r:
            rows.append(Row(what=f"{system}: wrong sentences of {r['samples']:,}", here=str(r["wrong_sentences"]), paper=f"{paper['wrong_sentences']}"))  # fmt: skip
        if name == "aquamam":
            rows.append(Row(what="AQuaMaM: seconds, training + sampling", here=f"{r['training_seconds']:.0f} + {r['sampling_seconds']:.0f}", paper="9000 (V100)"))  # fmt: skip
            if r["fit"]["batches"] == "expected":
                reductions.append(f"AQuaMaM: its full size, but {r['steps']:,} steps of the exact expected loss instead of 195,312 random batches.")  # fmt: skip
        text.append(f"Samples of {system}: {diverges(r)}.")
        reductions += r.get("reductions", [])
        picture = "toy_proportions.png" if name == "aquamam" else f"toy_proportions_{name}.png"
        figures.append(Figure(file=picture, caption=f"Figure 6: shares of the rotations in samples of {system} against the uniform truth."))  # fmt: skip
        if name == "aquamam":
            figures.append(Figure(file="toy_curve.png", caption="Figure 5: AQuaMaM's loss and its theoretical minimum."))  # fmt: skip
        elif name == "ipdf":
            figures.append(Figure(file="toy_curve_ipdf.png", caption="Figure 5: IPDF's training loss and its theoretical minimum."))  # fmt: skip
    if "ipdf" in results:
        text += about_ipdf(results["ipdf"])
    return Section(name="toy", title="Section 4.1, Figures 5 and 6: the toy data of 63 rotations", rows=tuple(rows), text=tuple(text), reductions=tuple(reductions), figures=tuple(figures))  # fmt: skip
