r"""All systems on distributions of known density: same draws, CPU time and measure, and the entropy.

Those of Liu et al. (2023) as mixtures of Bingham distributions, whose densities and draws are exact:

- peak: one rotation, with a spread;
- cone: all rotations about one axis, $z = (-κ, -κ, 0, 0)$, which is a great circle of quaternions;
- cube: the 24 rotations of a cube;
- line: rotations about one axis by -90 to 90 degrees, 61 components that lie 3 degrees apart;

and two without spread, which have no density; a system's likelihood there is bounded by its resolution alone:

- point: one rotation;
- toy: the paper's toy data.
"""

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from tqdm import tqdm

from aquamam.baselines.bingham import BinghamMixture
from aquamam.checkpoints.checkpoint import build
from aquamam.errors import require
from aquamam.files import write_json
from aquamam.geometry.grid import grid_size
from aquamam.geometry.rotations import multiply, random_quat, rotvec_to_quat
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.reproduce.fit_pairs import PLAIN, Fit, Pairs
from aquamam.reproduce.report import finish, template
from aquamam.reproduce.samples import nearest
from aquamam.reproduce.toy import toy_pairs
from aquamam.training.presets import preset

SPREAD = math.radians(4)  # of a mode: the standard deviation of the rotation vector's components
BATCH = 256  # rotations a step
POOL = 2000 * BATCH  # draws to train on: enough that few are seen twice
HELD_OUT, OTHER = 2000, 1_000_003  # draws to judge on, and how far their seed is from training's
DRAWN = 4000
LEVEL, ROTATED_LEVEL = 4, 2  # of IPDF's grids: as it stands, and rotated to each truth
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
    "classification": ("classification", {**_CATEGORY, "level": 3}),
    "flow": ("flow", {**_CATEGORY, "couplings": 9, "segments": 16, "width": 32}),
}
RECIPE = replace(PLAIN, lr=2e-3, decay="cosine", warm_up=0.05, beta2=0.99, clip=10.0, batch_size=BATCH, pyramid=True)
LR = {"bingham": 2e-2, "vonmises": 2e-2, "classification": 2e-2}  # heads alone
# Of the page's tables.
HEAD = "| system | LL | gap | ceiling | distance | stray | coverage | TV | µs / LL | µs / sample | steps |"
SAMPLES = "{mean_distance_deg:.2f}° | {stray:.1%} | {covered:.0%} | {total_variation:.3f}"
COSTS = "{microseconds_per_likelihood:.1f} | {microseconds_per_sample:.1f} | {steps:,}"


@dataclass(frozen=True, eq=False)
class Target:
    """What the systems are fitted to: for each of a few categories, the rotations that stand for modes or a curve."""

    about: str
    anchors: tuple[Tensor, ...]  # (anchors, 4) of each category, float64
    density: BinghamMixture | None = None  # of the one category; None: the anchors are all there is, equally probable

    def sample(self, count: int, generator: torch.Generator) -> Float[Tensor, "count categories 4"]:
        """Exact draws, xyzw."""
        if self.density is not None:
            return self.density.sample((count,), generator=generator)
        return torch.stack([q[torch.randint(len(q), (count,), generator=generator)].float() for q in self.anchors], 1)

    def pairs(self, draws: int, seed: int) -> Pairs:
        """Draws to train on or to take the likelihood of, or without spread all there is."""
        if self.density is not None:
            return Pairs.uniform([self.sample(draws, torch.Generator().manual_seed(seed))[:, 0]])
        return Pairs.uniform([q.repeat(-(-16 // len(q)), 1) for q in self.anchors])

    @cached_property
    def shares(self) -> list[Tensor]:
        """The anchors' shares of the truth: equal where there is no spread, else from 100,000 draws."""
        if self.density is None:
            return [torch.full((len(q),), 1 / len(q), dtype=torch.float64) for q in self.anchors]
        draws = self.sample(100_000, torch.Generator().manual_seed(99))[:, 0]
        return [nearest(draws, self.anchors[0])[1].double() / len(draws)]

    def judge(self, q: Float[Tensor, "rotations categories 4"]) -> dict[str, float]:
        """Samples against the truth: distance to the modes or the curve, and how evenly these are visited; means over
        the categories."""
        judged = []
        for own, anchors, true in zip(q.unbind(1), self.anchors, self.shares):
            radians, visits = nearest(own, anchors)
            distance, share = torch.rad2deg(radians), visits.double() / len(own)
            each = (distance.median(), distance.mean(), (distance > 20).double().mean())
            judged.append(torch.stack([*each, (share > true / 2).double().mean(), (share - true).abs().sum() / 2]))
        names = ("median_distance_deg", "mean_distance_deg", "stray", "covered", "total_variation")
        return dict(zip(names, torch.stack(judged).mean(0).tolist()))

    def truth(self, seed: int) -> dict[str, Any]:
        """What a perfect system would get, and the entropy (volume pi^2) where there is one."""
        judged = self.judge(self.sample(DRAWN // len(self.anchors), torch.Generator().manual_seed(seed + 7)))
        if self.density is None:
            return {"entropy": None, "entropy_error": 0.0, "truth": {**judged, "log_likelihood": None}}
        entropy = self.density.entropy(100_000, generator=torch.Generator().manual_seed(1))
        truth = {**judged, "log_likelihood": float(self.density.log_prob(self.pairs(HELD_OUT, seed + OTHER).q).mean())}
        return {"entropy": float(entropy.value), "entropy_error": float(entropy.standard_error), "truth": truth}


def _mixture(centres: Float[Tensor, "components 4"], free: int = 1) -> BinghamMixture:
    """Components of equal weight at these rotations, without concentration in the last `free` directions."""
    # a quaternion's component is half of the rotation vector's: exp(-k y^2) has variance 1 / (2 k) = (spread / 2)^2
    z = torch.tensor([-2 / SPREAD**2] * (4 - free) + [0.0] * free, dtype=torch.float64)
    weight = torch.full((1, len(centres)), -math.log(len(centres)), dtype=torch.float64)
    right = torch.tensor([0.0, 0, 0, 1], dtype=torch.float64)
    return BinghamMixture(weight, centres[None], right.expand_as(centres)[None], z.expand_as(centres)[None])


def targets() -> dict[str, Target]:
    """All targets by name."""
    # a rotation that is nothing special, so that no chart and no grid is favoured
    base = rotvec_to_quat(torch.tensor([[0.7, -1.1, 0.4]], dtype=torch.float64))
    z_axis = torch.tensor([0.0, 0, 1], dtype=torch.float64)
    cube = multiply(base, SymmetryGroup.octahedral().elements.double())
    turns = (torch.deg2rad(degrees.double()) for degrees in (torch.linspace(-90, 90, 61), torch.arange(0, 360, 5)))
    line, circle = (multiply(base, rotvec_to_quat(turn[:, None] * z_axis)) for turn in turns)
    pairs = toy_pairs()
    toy = tuple(pairs.of(i) for i in range(pairs.categories))
    spread = f"spread {math.degrees(SPREAD):.0f}°"
    return {
        "peak": Target(f"one rotation, {spread}", (base,), _mixture(base)),
        "cone": Target(f"all rotations about an axis, {spread}", (circle,), _mixture(base, free=2)),
        "cube": Target(f"24 rotations of a cube, {spread} each", (cube,), _mixture(cube)),
        "line": Target(f"rotations by -90° to 90° about an axis, {spread}", (line,), _mixture(line)),
        "point": Target("one rotation, no spread", (base,)),
        "toy": Target("1, 2, 4, 8, 16 and 32 rotations of six viewpoints, no spread", toy),
    }


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
    file, every = out / "comparison.json", targets()
    for what, given, allowed in (("systems", systems, SYSTEMS), ("distributions", distributions, every)):
        unknown = [name for name in given or () if name not in allowed]
        require(not unknown, f"{what} are {', '.join(allowed)}, got {', '.join(unknown)}.")
    require(0 < seconds < math.inf, f"seconds must be positive, got {seconds}.")
    settings: dict[str, Any] = {
        **{"seconds": seconds, "seed": seed, "batch": BATCH, "held_out": HELD_OUT, "drawn": DRAWN, "pool": POOL},
        **{"measure": "pi^2", "threads": torch.get_num_threads()},
        "systems": {name: {"kind": kind, **config} for name, (kind, config) in SYSTEMS.items()},
    }
    there = json.loads(file.read_text()) if file.exists() else {}
    result: dict[str, Any] = there if settings.items() <= there.items() else {**settings, "distributions": {}}
    work = [*product(distributions or every, systems or SYSTEMS)]
    for name, system in tqdm(work, desc="comparison", unit="fit", disable=None):
        target = every[name]
        if name not in result["distributions"]:
            about = {"about": target.about, "anchors": sum(map(len, target.anchors)), **target.truth(seed)}
            result["distributions"][name] = {**about, "systems": {}}
        done = result["distributions"][name]["systems"]
        if system not in done:
            done[system] = fit_and_judge(system, target, seconds, seed)
            write_json(file, result)  # a stopped run goes on from here
    return result


def fit_and_judge(name: str, target: Target, seconds: float, seed: int) -> dict[str, Any]:
    """One system on one target."""
    kind, config = SYSTEMS[name]
    categories, spread = len(target.anchors), target.density is not None
    torch.manual_seed(seed)
    model = build(kind, {**config, "categories": categories})
    recipe = replace(RECIPE, batches="sampled" if spread else "expected", lr=LR.get(kind, RECIPE.lr))
    fit = Fit(model, target.pairs(POOL, seed), replace(recipe, seconds=seconds, seed=seed)).run()
    model, held_out, images = fit.model, target.pairs(HELD_OUT, seed + OTHER), torch.arange(categories)
    with torch.no_grad():
        posterior = model(images)
        if kind == "ipdf" and not spread:
            # only a grid through the truth can be compared with a ceiling when scores are sharper than the grid
            posterior = model.posterior(images, normaliser="truth", level=ROTATED_LEVEL)  # type: ignore[call-arg]
        log_p, scoring = _timed(lambda: posterior.log_prob(held_out.q).double())
        count = DRAWN // categories
        q, drawing = _timed(lambda: posterior.sample((count,), generator=torch.Generator().manual_seed(seed)))
    return {
        "log_likelihood": held_out.mean(log_p),
        "standard_error": float(log_p.std()) / math.sqrt(len(log_p)) if spread else 0.0,
        "ceiling": posterior.ceiling if math.isfinite(posterior.ceiling) else None,
        **target.judge(q),
        "steps": len(fit.curve),
        "parameters": model.parameter_count,
        "microseconds_per_likelihood": 1e6 * scoring / log_p.numel(),
        "microseconds_per_sample": 1e6 * drawing / (count * categories),
    }


def _timed(work: Any) -> tuple[Any, float]:
    work()  # the first call of a posterior may walk its grid once for all
    start = time.process_time()
    value = work()
    return value, time.process_time() - start


def markdown(result: dict[str, Any]) -> str:
    """The comparison page."""
    lines = [template("comparison.md").format_map(result).rstrip()]
    for name, entry in result["distributions"].items():
        lines += ["", f"## {name.capitalize()}: {entry['about']}", "", HEAD, "|---" * 11 + "|"]
        truth, known = entry["truth"], entry["entropy"] is not None
        best = f"{-entry['entropy']:.3f} ± {entry['entropy_error']:.3f}" if known else "no bound"
        lines.append(f"| **the truth** | **{best}** |  |  | {SAMPLES.format_map(truth)} |  |  |  |")
        for system, r in sorted(entry["systems"].items(), key=lambda item: -item[1]["log_likelihood"]):
            found = f"{r['log_likelihood']:.3f}" + (f" ± {r['standard_error']:.3f}" if r["standard_error"] else "")
            gap = f"{truth['log_likelihood'] - r['log_likelihood']:.3f}" if known else ""
            ceiling = "none" if r["ceiling"] is None else f"{r['ceiling']:.2f}"
            lines.append(
                f"| {system} | {found} | {gap} | {ceiling} | {SAMPLES.format_map(r)} | {COSTS.format_map(r)} |"
            )
    return "\n".join(lines) + "\n"


# --- throughput against IPDF (Section 4.2: 52 times on a GPU) on this machine, with one small encoder for both --------


def throughput(out: Path, *, level: int = 5, rounds: int = 3, seed: int = 0) -> dict[str, Any]:
    """Time both systems on one image; returns what OUT/throughput.json holds."""
    torch.manual_seed(seed)
    ours = build("aquamam", preset("die-small").model.to_dict()).eval()
    ipdf = build("ipdf", {**preset("ipdf-small").model.to_dict(), "level": level}).eval()
    image, q = torch.rand(1, 3, 64, 64), random_quat((1, 1))
    works: dict[str, Callable[[], object]] = {
        "aquamam_likelihood": lambda: ours(image).log_prob(q),
        "aquamam_prediction": lambda: ours(image).mode,
        "ipdf_likelihood": lambda: ipdf.posterior(image, normaliser="truth").log_prob(q),  # type: ignore[call-arg]
        "ipdf_prediction": lambda: ipdf(image).mode,
    }
    wall: dict[str, list[float]] = {name: [] for name in works}
    cpu: dict[str, list[float]] = {name: [] for name in works}
    with torch.inference_mode():
        # in alternation, so that a noisy machine troubles all equally; the first round warms up
        for i in tqdm(range(rounds + 1), desc="throughput", unit="round", disable=None):
            for name, work in works.items():
                for _ in range(10 if name.startswith("aquamam") else 1):  # ours takes milliseconds
                    start, cpu_start = time.perf_counter(), time.process_time()
                    work()
                    if i:
                        wall[name].append(time.perf_counter() - start)
                        cpu[name].append(time.process_time() - cpu_start)
    result: dict[str, Any] = {"rounds": rounds, "threads": torch.get_num_threads(), "seed": seed}
    result |= {"grid": grid_size(level), "rounds_seconds": wall}
    for prefix, seconds in (("", wall), ("cpu_", cpu)):
        median = {name: statistics.median(times) for name, times in seconds.items()}
        ratio = {what: median[f"ipdf_{what}"] / median[f"aquamam_{what}"] for what in ("likelihood", "prediction")}
        result |= {f"median_{prefix}seconds": median, f"{prefix}ratio": ratio}
    result["parameters"] = {"aquamam": ours.parameter_count, "ipdf": ipdf.parameter_count}
    return finish(out, "throughput", result)
