"""`aquamam evaluate`: how good a model is on held-out images."""

import argparse
import json
import math
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aquamam.cli.options import seed
from aquamam.errors import InputError

if TYPE_CHECKING:
    from torch import nn

    from aquamam.data.base import RotationDataset
    from aquamam.evaluation.results import Errors, Evaluation, Figures

HELP = "Likelihood, errors, spread, calibration and speed of a model on held-out images, as table, JSON and page."
EXAMPLES = """  aquamam evaluate die                             on 10,000 fresh renders of what the model was trained on
  aquamam evaluate runs/die --data data/die --out report      a folder's test split; report/evaluation.html
  aquamam evaluate runs/die --data render:die --count 2000 --samples 50 --json
  torchrun --nproc-per-node 8 -m aquamam evaluate runs/die --data data/die
"""

RENDERED = 10_000  # images rendered where there is no data set
SEED = 2**31  # of those: training seeds are small, and no training renders a split called test
MANY_CLASSES = 40  # more are in the JSON only


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("checkpoint", help="a bundled model's name, a checkpoint's file or a run's folder")
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="a data set's folder, or render:NAME for a solid or mesh file (default: what the model was trained on, "
        "rendered anew with a seed unknown to training)",
    )
    parser.add_argument("--split", help="of the data set (default: test, else valid)")
    parser.add_argument(
        "--count", type=int, metavar="N", help=f"images (default: all of a folder's, {RENDERED:,} rendered)"
    )
    parser.add_argument(
        "--samples", type=int, default=100, metavar="N", help="drawn for each image (default: 100; 0 skips calibration)"
    )
    parser.add_argument(
        "--strategies", metavar="A,B", help="of greedy, beam and expected; the first gives the headline (default: all)"
    )
    parser.add_argument("--seed", type=seed, default=0, help="of samples, ties and rendered images (default: 0)")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="images at once (default: 64)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: a GPU if there is one)")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write evaluation.json and the page evaluation.html")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def run(args: argparse.Namespace) -> int:
    import torch.distributed as dist

    from aquamam.checkpoints.checkpoint import load
    from aquamam.evaluation.evaluate import evaluate
    from aquamam.pages.evaluation import write_report
    from aquamam.training.distributed import process_group

    strategies = None if args.strategies is None else [s.strip() for s in args.strategies.split(",") if s.strip()]
    start = time.monotonic()
    with process_group(args.device) as device:
        model = load(args.checkpoint, device=device)
        dataset, source = open_data(model, args.data, args.split, args.count, args.seed)
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)  # what cannot be written is said before the work, not after
        evaluation = evaluate(
            model, dataset, limit=args.count, samples=args.samples, strategies=strategies, seed=args.seed,
            batch_size=args.batch_size, quiet=args.quiet,
        )  # fmt: skip
        if dist.is_initialized() and dist.get_rank() > 0:
            return 0
    about = {
        "model": args.checkpoint,
        "kind": model.kind,
        "parameters": sum(p.numel() for p in model.parameters()),
        "data": source,
        "seconds": round(time.monotonic() - start, 1),
    }
    page = None if args.out is None else write_report(args.out, evaluation, dataset, about)
    if args.json:
        print(json.dumps({**about, **evaluation.to_dict()}))
    else:
        print("\n".join(lines_of(evaluation, about)))
        if page is not None:
            print(f"\npage with curves and worst cases: {page}")
    return 0


# --- data -------------------------------------------------------------------------------------------------------------


def open_data(
    model: "nn.Module", source: str | None, split: str | None, count: int | None, seed: int
) -> tuple["RotationDataset", str]:
    """The images to judge a model on, and a phrase that says what they are."""
    from aquamam.data.open import open_dataset, splits_of

    size = getattr(model.config, "image_size", 224)
    if source is None or source.startswith("render:"):
        if split is not None:
            raise InputError("a split is a part of a data set on disk; give its folder with --data, or drop --split.")
        return rendered(model, source, RENDERED if count is None else count, SEED + seed, size)
    if not Path(source).exists():
        raise InputError(f"there is no data set at {source!r}; make one with aquamam render, or use --data render:die.")
    if split is None:
        there = splits_of(source)
        held_out = [s for start in ("test", "val", "all") for s in there if s.startswith(start)]  # all: undivided
        if not held_out:
            raise InputError(
                f"{source} has no test or validation split, only {', '.join(there) or 'none'}; name one with --split."
            )
        split = held_out[0]
    return open_dataset(source, split, size=size), f"{source}, split {split}"


def rendered(model: "nn.Module", source: str | None, count: int, seed: int, size: int) -> tuple["RotationDataset", str]:
    """Fresh renders, of what the model was trained on unless `source` names something else, with training's camera and light."""
    from dataclasses import replace

    from aquamam.data.renders import RenderedDataset
    from aquamam.fit.part import fresh_renders
    from aquamam.rendering.render import RenderSettings
    from aquamam.rendering.solids import NAMES, open_object

    if source is None and (fitted := fresh_renders(model, seed=seed, split="test", length=max(count, 1))) is not None:
        return fitted, f"fresh renders of {fitted.classes[0]} at {size} px, drawn as in training, seed {seed}"
    trained: dict[str, Any] = getattr(model, "info", {}).get("data", {})
    if source is None:
        names = [str(thing.get("name")) for thing in trained.get("objects", ()) if isinstance(thing, dict)]
        if not names:
            raise InputError("this model does not say what it was trained on; give --data DIR or --data render:NAME.")
        unknown = [name for name in names if name not in NAMES]
        if unknown:
            raise InputError(
                f"this model was trained on {unknown[0]}, which is not a solid of ours; give --data DIR or --data render:MESHFILE."
            )
    else:
        names = [name for name in source.removeprefix("render:").split(",") if name]
        if not names:
            raise InputError("render: needs a solid or a mesh file; try --data render:die.")
    objects = [open_object(name) for name in names]
    settings = RenderSettings.from_dict(trained["settings"]) if "settings" in trained else RenderSettings()
    dataset = RenderedDataset(
        objects, replace(settings, size=size), seed=seed, split="test", length=max(count, 1), lookalikes=True
    )
    return dataset, f"fresh renders of {', '.join(dataset.classes)} at {size} px, seed {seed}"


# --- text -------------------------------------------------------------------------------------------------------------


def lines_of(evaluation: "Evaluation", about: dict[str, Any]) -> list[str]:
    """The evaluation as a table for people."""
    f, speed = evaluation.figures, evaluation.throughput
    ceiling = f"ceiling {evaluation.ceiling:.2f}" if math.isfinite(evaluation.ceiling) else "no ceiling"
    lines = [
        f"{about['model']} ({about['kind']}, {about['parameters']:,} parameters)",
        f"on {f.images:,} images: {about['data']}; {about['seconds']:.0f} s",
        "",
        f"log-likelihood   mean {f.mean_log_likelihood:.3f} ± {f.log_likelihood_se:.3f}, median {f.median_log_likelihood:.3f}"
        f"   (volume pi^2: uniform -2.29, {ceiling})",
    ]
    if evaluation.samples:
        lines += [
            f"spread           {f.spread_deg:.2f} deg expected angle to the truth, {evaluation.samples} samples an image",
            f"calibration      {evaluation.verdict}: PIT KS {f.pit_ks:.4f} (p = {f.pit_p:.2g})",
            "                 " + "   ".join(f"{level} % region covers {covered(f, level)}" for level in (50, 90, 95)),
        ]
    lines += ["", "error in degrees                mean  median  Acc@15  Acc@30   images/s"]
    for name, errors in evaluation.strategies.items():
        label = f"{name}, nearest equivalent" if evaluation.symmetric else name
        lines.append(f"  {label:28} {error_cells(errors)} {speed.predictions[name]:10,.0f}")
    if evaluation.symmetric:
        lines += [f"  {name + ', plain':28} {error_cells(errors)}" for name, errors in evaluation.plain.items()]
    unknown = [name for name, what in evaluation.symmetries.items() if what == "unknown"]
    if unknown:
        lines.append(f"  symmetries of {', '.join(unknown[:3])} are not known: errors are to the given rotation alone")
    if len(evaluation.classes) > 1:
        lines += ["", *class_lines(evaluation)]
    drawn = f", samples {speed.samples:,.0f}/s" if evaluation.samples else ""
    lines += [
        "",
        f"throughput       log-likelihoods {speed.likelihoods:,.0f}/s, predictions "
        f"{next(iter(speed.predictions.values())):,.0f}/s{drawn}",
        f"                 medians over batches of {speed.batch_size}, encoding included, for each of {speed.processes} "
        f"process{'es' if speed.processes > 1 else ''} on {speed.device} with {speed.threads} "
        f"thread{'s' if speed.threads > 1 else ''}",
    ]
    if evaluation.unreadable:
        lines.append(f"left out         {len(evaluation.unreadable)} unreadable, first: {evaluation.unreadable[0]}")
    return lines


def class_lines(evaluation: "Evaluation") -> list[str]:
    """One line a class, and their mean."""
    width = max(len("mean of classes"), *(len(name) for name in evaluation.classes))
    head = f"{'class':{width}}  images  mean LL   mean  median  Acc@15  Acc@30"
    lines = [head + ("  spread     KS  cover 90" if evaluation.samples else "")]
    rows = [*list(evaluation.classes.items())[:MANY_CLASSES], ("mean of classes", evaluation.class_mean)]
    for name, f in rows:
        line = f"{name:{width}} {f.images:7,} {f.mean_log_likelihood:8.3f} {error_cells(f)}"
        drawn = f" {f.spread_deg:7.2f} {f.pit_ks:6.3f} {f.coverage90:9.1%}" if evaluation.samples else ""
        lines.append(line + drawn)
    return lines


def error_cells(errors: "Errors") -> str:
    return f"{errors.mean_error_deg:6.2f} {errors.median_error_deg:7.2f} {errors.acc15:7.1%} {errors.acc30:7.1%}"


def covered(figures: "Figures", level: int) -> str:
    share, error = getattr(figures, f"coverage{level}"), getattr(figures, f"coverage{level}_se")
    return f"{100 * share:.1f} ± {100 * error:.1f} %"
