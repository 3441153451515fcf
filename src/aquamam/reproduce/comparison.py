"""All systems on distributions of known density: the same draws, the same CPU time, the same measure, and the entropy beside it."""

import json
import math
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from aquamam.checkpoints.checkpoint import build
from aquamam.posterior.distribution import RotationDistribution
from aquamam.errors import InputError
from aquamam.reproduce import analytic
from aquamam.reproduce.analytic import Analytic
from aquamam.reproduce.results import write_result
from aquamam.reproduce.toy import toy_pairs
from aquamam.training.config import TrainConfig

BATCH = 256  # rotations a step
POOL = 2000 * BATCH  # draws to train on: enough that few are seen twice
HELD_OUT = 2000
DRAWN = 4000
LEVEL, TURNED_LEVEL = 4, 2  # of IPDF's grids: as it stands, and turned to each truth
# Every system with small networks that read a category; "category_features" is what the table gives a head to read.
_CATEGORY: dict[str, Any] = {"encoder": "category", "category_features": 64}
_TRUNK: dict[str, Any] = {"dim": 64, "heads": 4, "layers": 2, "hidden": 128, "tokens": 4}
SYSTEMS: dict[str, tuple[str, dict[str, Any]]] = {
    "AQuaMaM": ("aquamam", {"embedding": "category", "bins": 500, **_TRUNK}),
    "AQuaMaM-MoG": ("mog", {**_CATEGORY, **_TRUNK, "components": 64}),
    "IPDF": ("ipdf", {**_CATEGORY, "negatives": 1023, "level": LEVEL}),
    "Bingham": ("bingham", {**_CATEGORY, "components": 1}),
    "Bingham mixture": ("bingham", {**_CATEGORY, "components": 32}),
    "Bingham, winner": ("bingham", {**_CATEGORY, "components": 32, "training": "winner"}),
    "von Mises mixture": ("vonmises", {**_CATEGORY, "components": 32}),
    "von Mises VAE": ("vonmises-cvae", {**_CATEGORY, "draws": 256}),
    "classification": ("classification", {**_CATEGORY, "level": 3}),
    "flow": ("flow", {**_CATEGORY, "couplings": 9, "segments": 16, "width": 32}),
}
SMEARED = TrainConfig()  # AQuaMaM's labels are smeared at first, as `aquamam train` does it
LR = {"bingham": 2e-2, "vonmises": 2e-2, "classification": 2e-2}  # heads alone; networks train at 2e-3


class Drawn(NamedTuple):
    """Rotations of each category side by side, and their probabilities, which sum to one in every column."""

    q: Float[Tensor, "rotations categories 4"]
    weights: Float[Tensor, "rotations categories"]


@runtime_checkable
class Task(Protocol):
    """What the systems are fitted to: a distribution for each of a few categories."""

    name: str
    about: str
    categories: int
    modes: int
    exact: bool  # whether what is held out is all there is

    def batches(self, generator: torch.Generator) -> Iterator[Drawn]:
        """To train on, without end."""

    def held_out(self, seed: int) -> Drawn:
        """To take the likelihood of."""

    def judge(self, q: Float[Tensor, "rotations categories 4"]) -> dict[str, float]:
        """Samples against the truth."""

    def truth(self, seed: int) -> dict[str, Any]:
        """What a perfect system would get, and the entropy where there is one."""


class AnalyticTask:
    """One distribution of known density, or a point."""

    categories, exact = 1, False

    def __init__(self, distribution: Analytic):
        self.distribution = distribution
        self.name, self.about, self.modes = distribution.name, distribution.about, len(distribution.anchors)

    def batches(self, generator: torch.Generator) -> Iterator[Drawn]:
        pool = self.distribution.sample(POOL, generator)
        while True:
            pick = torch.randint(len(pool), (BATCH,), generator=generator)
            yield Drawn(pool[pick][:, None], torch.full((BATCH, 1), 1 / BATCH))

    def held_out(self, seed: int) -> Drawn:
        # all draws of a point are alike, and IPDF's turned grid is walked for each
        count = HELD_OUT if self.distribution.truth is not None else 16
        q = self.distribution.sample(count, torch.Generator().manual_seed(seed + 1_000_003))
        return Drawn(q[:, None], torch.full((count, 1), 1 / count))

    def judge(self, q: Float[Tensor, "rotations categories 4"]) -> dict[str, float]:
        return judge(self.distribution, q[:, 0])

    def truth(self, seed: int) -> dict[str, Any]:
        entropy, error = self.distribution.entropy()
        judged = judge(self.distribution, self.distribution.sample(DRAWN, torch.Generator().manual_seed(seed + 7)))
        log_likelihood = math.inf
        if self.distribution.truth is not None:
            log_p = self.distribution.truth.log_prob(self.held_out(seed).q.double())
            log_likelihood = float(log_p.mean())
        return {"entropy": entropy, "entropy_error": error, "truth": {**judged, "log_likelihood": log_likelihood}}


class ToyTask:
    """The paper's toy: 1, 2, 4, ... 32 rotations of six viewpoints, each as probable as the others of its viewpoint."""

    name, about = "toy", "1, 2, 4, 8, 16 and 32 rotations of six viewpoints, no spread"
    exact = True

    def __init__(self) -> None:
        pairs = toy_pairs()
        self.categories, self.modes = pairs.categories, len(pairs.q)
        q, row = pairs.side_by_side()
        weights = torch.zeros(q.shape[:2])
        weights[row, pairs.category] = (pairs.weight * pairs.categories).float()
        self.drawn = Drawn(q.float(), weights)
        self.viewpoints = [Analytic(f"viewpoint {i}", "", None, pairs.of(i)) for i in range(pairs.categories)]

    def batches(self, generator: torch.Generator) -> Iterator[Drawn]:
        """The exact expected loss, every time."""
        while True:
            yield self.drawn

    def held_out(self, seed: int) -> Drawn:
        return self.drawn

    def judge(self, q: Float[Tensor, "rotations categories 4"]) -> dict[str, float]:
        each = [judge(viewpoint, q[:, i]) for i, viewpoint in enumerate(self.viewpoints)]
        return {key: float(np.mean([one[key] for one in each])) for key in each[0]}

    def truth(self, seed: int) -> dict[str, Any]:
        generator = torch.Generator().manual_seed(seed + 7)
        q = torch.stack([v.sample(DRAWN // self.categories, generator) for v in self.viewpoints], 1)
        truth = {**self.judge(q), "log_likelihood": math.inf}
        return {"entropy": -math.inf, "entropy_error": 0.0, "truth": truth}


def task(name: str) -> Task:
    """The task of that name."""
    return ToyTask() if name == "toy" else AnalyticTask(analytic.analytic(name))


NAMES = (*analytic.NAMES, "toy")


def run(
    out: Path,
    *,
    seconds: float = 5.0,
    seed: int = 0,
    systems: Sequence[str] | None = None,
    distributions: Sequence[str] | None = None,
) -> dict[str, Any]:
    """Fit every system to every distribution for `seconds` of CPU time; returns what OUT/comparison.json holds.

    A pair that OUT/comparison.json has already with the same budget and seed is not run again.
    """
    chosen = list(systems or SYSTEMS)
    wanted = [task(name) for name in distributions or NAMES]
    unknown = [name for name in chosen if name not in SYSTEMS]
    if unknown:
        raise InputError(f"systems are {', '.join(SYSTEMS)}, got {', '.join(unknown)}.")
    if not 0 < seconds < math.inf:
        raise InputError(f"seconds must be positive, got {seconds}.")
    result = _before(out, seconds, seed)
    with tqdm(total=len(chosen) * len(wanted), desc="comparison", unit="fit", disable=None) as bar:
        for distribution in wanted:
            entry = result["distributions"].setdefault(distribution.name, {"systems": {}})
            entry.update(about=distribution.about, anchors=distribution.modes, **distribution.truth(seed))
            for name in chosen:
                bar.set_postfix_str(f"{distribution.name}, {name}", refresh=False)
                if name not in entry["systems"]:
                    entry["systems"][name] = fit_and_judge(name, distribution, seconds, seed)
                    write_result(out, "comparison", result)  # a stopped run goes on from here
                bar.update()
    write_result(out, "comparison", result)
    return result


def _before(out: Path, seconds: float, seed: int) -> dict[str, Any]:
    settings = {
        "seconds": seconds, "seed": seed, "batch": BATCH, "held_out": HELD_OUT, "drawn": DRAWN, "measure": "pi^2",
        "threads": torch.get_num_threads(), "pool": POOL, "systems": {name: {"kind": kind, **config} for name, (kind, config) in SYSTEMS.items()},
    }  # fmt: skip
    file = out / "comparison.json"
    if file.exists():
        there = json.loads(file.read_text())
        if all(there.get(key) == json.loads(json.dumps(value)) for key, value in settings.items()):
            return there
    return {**settings, "distributions": {}}


def fit_and_judge(name: str, task: Task, seconds: float, seed: int) -> dict[str, Any]:
    """One system on one task."""
    kind, config = SYSTEMS[name]
    torch.manual_seed(seed)
    model = build(kind, {**config, "categories": task.categories})
    steps = fit(model, task, seconds, LR.get(kind, 2e-3), seed)
    model.eval()
    held_out = task.held_out(seed)
    with torch.no_grad():
        posterior = _posterior(model, task)
        log_p, scoring = _timed(lambda: posterior.log_prob(held_out.q.double()).double())
        count = DRAWN // task.categories
        q, drawing = _timed(lambda: posterior.sample((count,), generator=torch.Generator().manual_seed(seed)))
    real = held_out.weights > 0
    weights = held_out.weights.double() / task.categories
    return {
        "log_likelihood": float((log_p * weights)[real].sum()),
        "standard_error": 0.0 if task.exact else float(log_p[real].std()) / math.sqrt(int(real.sum())),
        "ceiling": float(posterior.ceiling),
        **task.judge(q),
        "steps": steps,
        "parameters": sum(p.numel() for p in model.parameters()),
        "microseconds_per_likelihood": 1e6 * scoring / log_p.numel(),
        "microseconds_per_sample": 1e6 * drawing / (count * task.categories),
    }


def _posterior(model: nn.Module, task: Task) -> RotationDistribution:
    images = torch.arange(task.categories)
    if model.kind == "ipdf" and task.name in ("point", "toy"):
        # only a grid through the truth can be compared with a ceiling when scores are sharper than the grid
        return model.posterior(images, normaliser="truth", level=TURNED_LEVEL)  # type: ignore[operator]
    return model(images)


def fit(model: nn.Module, task: Task, seconds: float, lr: float, seed: int) -> int:
    """Adam for that much CPU time, the rate up in a line and down in a cosine; returns the steps taken."""
    generator = torch.Generator().manual_seed(seed)
    batches = task.batches(generator)
    drawn = next(batches)  # drawing is not what is compared
    smears = getattr(model, "smooths_labels", False)
    images = torch.arange(task.categories)
    optimizer = torch.optim.Adam(model.parameters(), lr, betas=(0.9, 0.99))
    start, steps = time.process_time(), 0
    while (share := (time.process_time() - start) / seconds) < 1:
        for group in optimizer.param_groups:
            group["lr"] = lr * min(1.0, 0.02 + share / 0.05) * (0.01 + 0.99 * (1 + math.cos(math.pi * share)) / 2)
        smearing = {"smoothing": SMEARED.label_width(share)} if smears else {}
        loss = model.loss(images, drawn.q, weights=drawn.weights, generator=generator, **smearing)  # type: ignore[operator]
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 10.0)
        optimizer.step()
        steps, drawn = steps + 1, next(batches)
    return steps


def judge(distribution: Analytic, q: Tensor) -> dict[str, float]:
    """Samples against the truth: distance to the modes or the curve, and how evenly these are visited."""
    distance, nearest = distribution.distance(q)
    counts = nearest.bincount(minlength=len(distribution.anchors)).numpy()
    share = counts / max(counts.sum(), 1)
    expected = distribution.shares
    return {
        "median_distance_deg": float(torch.rad2deg(distance.median())),
        "mean_distance_deg": float(torch.rad2deg(distance.mean())),
        "stray": float((distance > math.radians(20)).double().mean()),
        "covered": float((share > expected / 2).mean()),
        "total_variation": float(np.abs(share - expected).sum() / 2),
    }


def _timed(work: Any) -> tuple[Any, float]:
    work()  # the first call of a posterior may walk its grid once for all
    start = time.process_time()
    value = work()
    return value, time.process_time() - start


def markdown(result: dict[str, Any]) -> str:
    """The comparison page."""
    lines = [
        "# All systems on distributions of known density, and on the toy",
        "",
        f"Made by `aquamam reproduce comparison --seconds {result['seconds']:g}`; do not edit. Each system was fitted to each distribution alone, on the "
        f"same draws, for {result['seconds']:g} s of CPU time ({result['threads']} thread), with Adam and batches of {result['batch']} rotations. That is a small "
        "budget: it shows how far each gets quickly, not how far it can get. Networks are small (their sizes are in the `comparison.json` that the command writes).",
        "",
        f"- **LL**: mean log-likelihood of {result['held_out']:,} held-out draws, volume π² (uniform: -2.29). The truth's row has minus its entropy, which no "
        "system can exceed but by the noise of the draws; **gap** is what is missing to the truth's own likelihood of the same draws. **ceiling** is the largest log density that the system can express.",
        f"- **distance**: mean angle of {result['drawn']:,} samples to the nearest mode, or point of the curve. **stray**: share farther than 20° from it.",
        "- **coverage**: share of the modes (or of pieces of the curve) that get at least half of their share of the samples, each counted to the nearest: "
        "samples that are spread over everything cover everything, so read it beside stray. **TV**: total variation between the shares and the true ones.",
        "- **µs / LL**, **µs / sample**: CPU time for one of many rotations of one image; what a posterior computes once for an image (IPDF's walk over its "
        "grid) is left out.",
        "- IPDF is normalised on a standing grid of 294,912 rotations, on the point and the toy by a grid of 4,608 turned to the truth; the von Mises VAE's likelihood is an "
        "importance-weighted estimate with 256 draws. Heads without a network behind them (Bingham, von Mises mixture, classification) train at a rate of 2e-2, the others at 2e-3; neither was tuned.",
        "- AQuaMaM (500 bins, atlas) starts with smeared labels, as in `aquamam train`, for the first 40 % of its time; the others have no such recipe. A short budget is hard "
        "for networks, which learn every bin from examples, and long for families that contain the truth.",
    ]  # fmt: skip
    for name, entry in result["distributions"].items():
        lines += ["", f"## {name.capitalize()}: {entry['about']}", ""]
        truth = entry["truth"]
        known = entry["entropy"] is not None and math.isfinite(entry["entropy"])
        best = f"{-entry['entropy']:.3f} ± {entry['entropy_error']:.3f}" if known else "no bound"
        lines += [
            "| system | LL | gap | ceiling | distance | stray | coverage | TV | µs / LL | µs / sample | steps |",
            "|---|---|---|---|---|---|---|---|---|---|---|",
            f"| **the truth** | **{best}** | | | {truth['mean_distance_deg']:.2f}° | {truth['stray']:.1%} | {truth['covered']:.0%} | {truth['total_variation']:.3f} | | | |",
        ]
        rows = sorted(entry["systems"].items(), key=lambda item: -item[1]["log_likelihood"])
        for system, r in rows:
            gap = f"{truth['log_likelihood'] - r['log_likelihood']:.3f}" if known else ""
            ceiling = f"{r['ceiling']:.2f}" if r["ceiling"] is not None and math.isfinite(r["ceiling"]) else "none"
            luck = f" ± {r['standard_error']:.3f}" if r["standard_error"] else ""
            lines.append(
                f"| {system} | {r['log_likelihood']:.3f}{luck} | {gap} | {ceiling} | {r['mean_distance_deg']:.2f}° | {r['stray']:.1%} "
                f"| {r['covered']:.0%} | {r['total_variation']:.3f} | {r['microseconds_per_likelihood']:.1f} | {r['microseconds_per_sample']:.1f} | {r['steps']:,} |"
            )
        note = NOTES.get(name)
        lines += ["", note] if note else []
    return "\n".join(lines) + "\n"


NOTES = {
    "toy": "The exact expected loss of 63 pairs at every step. Numbers are means over the viewpoints. As with the point, only systems with bins or cells have a bound "
    "(17.60 for AQuaMaM's 500 bins, less the 1.73 nats of ambiguity: 15.87); what tells systems apart is where their samples lie. `aquamam reproduce toy` has the paper's sizes.",
    "point": "Where there is no spread, every system without bins or grid cells gains as long as it is trained; the numbers tell of bounds and "
    "patience, not of the truth. The paper's peak (AQuaMaM at 29.51) is this case with 50,257 bins.",
    "peak": "A single Bingham distribution is the truth's own family here, so its gap is that of the optimiser.",
    "cube": "The Bingham mixtures have 32 components for 24 modes, and the truth is of their family.",
}
