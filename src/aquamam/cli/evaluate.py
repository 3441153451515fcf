"""Likelihood, errors, spread, calibration and speed of a model on held-out images, as table, JSON and page.

aquamam evaluate die                             on 10,000 fresh renders of what the model was trained on
aquamam evaluate runs/die --data data/die --out report      a folder's test split; report/evaluation.html
aquamam evaluate die --photoreal                 on 300 path-traced pictures of a die in daylight and rooms
aquamam evaluate runs/die --data render:die --count 2000 --samples 50 --json
aquamam evaluate parts/duck --data lmo --object 9 --min-visible 0.6      crops of BOP's photographs
aquamam evaluate --bop lmo result.csv            BOP's recalls of a result file, of aquamam predict --bop or others
torchrun --nproc-per-node 8 -m aquamam evaluate runs/die --data data/die
"""

import argparse
import json
import math
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aquamam.cli.main import SHARED, add, columns, given, rendered_objects
from aquamam.errors import InputError, require

if TYPE_CHECKING:
    from torch import nn

    from aquamam.data.base import RotationDataset
    from aquamam.evaluation.results import Errors, Evaluation

RENDERED = 10_000  # images rendered where there is no data set
SEED = 2**31  # of those: training seeds are small, and no training renders a split called test
MANY_CLASSES = 40  # more are in the JSON only
ERRORS = ("mean", "median", "Acc@15", "Acc@30")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("checkpoint", metavar="MODEL", help=SHARED["--model"]["help"] + "; with --bop a result file")
    option("--bop", type=Path, metavar="DIR", help="print MSSD, MSPD and ADD(-S) recalls of BOP's result file")
    anew = " (default: what the model was trained on, rendered anew with a seed unknown to training)"
    add(parser, "--data", help=SHARED["--data"]["help"] + anew)
    option("--photoreal", action="store_true", help="judge on the path-traced pictures of the die in the package")
    option("--split", help="of the data set (default: test, else valid)")
    option("--object", type=int, action="append", metavar="ID", help="of BOP's data: only this one; may be repeated")
    option("--min-visible", type=float, metavar="SHARE", help="of BOP's data: least visible share of an object")
    option("--count", type=int, metavar="N", help=f"images (default: all of a folder's, {RENDERED:,} rendered)")
    option("--samples", type=int, default=100, metavar="N", help="drawn for each image; 0 skips calibration")
    strategies = "of greedy, beam and expected; the first gives the headline (default: all)"
    option("--strategies", type=lambda text: text.replace(" ", "").split(","), metavar="A,B", help=strategies)
    option("--batch-size", type=int, default=64, metavar="N", help="images at once")
    option("--out", type=Path, metavar="DIR", help="write evaluation.json and the page evaluation.html")
    add(parser, "--seed", help="of samples, ties and rendered images")
    add(parser, "--device", "--json", "--quiet")


def run(args: argparse.Namespace) -> None:
    if args.bop is not None:
        judge_bop(args)
        return
    import torch.distributed as dist

    from aquamam.checkpoints.checkpoint import load
    from aquamam.evaluation.evaluate import evaluate
    from aquamam.pages.evaluation import write_report
    from aquamam.training.distributed import process_group

    start = time.monotonic()
    with process_group(args.device) as device:
        model = load(args.checkpoint, device=device)
        dataset, source = open_data(model, args)
        if args.out is not None:
            args.out.mkdir(parents=True, exist_ok=True)  # what cannot be written is said before the work, not after
        options = given(args, "samples", "strategies", "seed", "batch_size", "quiet")
        evaluation = evaluate(model, dataset, limit=args.count, **options)
        if dist.is_initialized() and dist.get_rank() > 0:
            return
    about = {"model": args.checkpoint, "kind": model.kind, "parameters": model.parameter_count, "data": source}
    about["seconds"] = round(time.monotonic() - start, 1)
    lines = lines_of(evaluation, about)
    if args.out is not None:
        lines.append(f"\npage with curves and worst cases: {write_report(args.out, evaluation, dataset, about)}")
    print(json.dumps({**about, **evaluation.to_dict()}) if args.json else "\n".join(lines))


def judge_bop(args: argparse.Namespace) -> None:
    """The recalls of a result file, a row for each object."""
    from aquamam.evaluation.bop import Recalls, judge, read_results

    results = read_results(Path(args.checkpoint))
    if not results and not args.object:
        raise InputError(f"{args.checkpoint} holds no poses; name the objects with --object to count them as missed.")
    found = judge(args.bop, results, args.split or "test", objects=args.object, **given(args, "min_visible"))
    told = {str(number): one for number, one in found.items()} | {"mean": Recalls.mean(list(found.values()))}
    if args.json:
        print(json.dumps({name: asdict(one) for name, one in told.items()}))
        return
    rows = [["object", "instances", "AR MSSD", "AR MSPD", "ADD(-S)", "MSSD 0.2 d", "MSPD 20 px"]]
    for name, one in told.items():
        figures = (one.mssd, one.mspd, one.add, one.mssd_20, one.mspd_20)
        rows.append([name, f"{one.instances:,}", *(f"{x:.3f}" for x in figures)])
    print("\n".join(columns(rows)))


# --- the images to judge a model on, and a phrase that says what they are ---------------------------------------------


def open_data(model: "nn.Module", args: argparse.Namespace) -> "tuple[RotationDataset, str]":
    from aquamam.data.loaders.photoreal import PhotorealDataset
    from aquamam.data.open import open_dataset, recognise, splits_of
    from aquamam.network.poses import part_of

    size, options = getattr(model.config, "image_size", 224), given(args, "min_visible")
    chosen = given(args, "split", "object", "min_visible")
    if args.photoreal:
        told = "--photoreal is a data set of its own; drop it, or what chooses another (--data, --split, ...)."
        require(args.data is None and not chosen, told)
        return PhotorealDataset(size=size), f"physically based pictures of a die at {size} px"
    if args.data is None or args.data.startswith("render:"):
        told = "--split, --object and --min-visible choose from data sets on disk; give their folder with --data."
        require(not chosen, told)
        return rendered(model, args.data, RENDERED if args.count is None else args.count, args.seed)
    there = splits_of(args.data)
    held_out = [s for start in ("test", "val", "all") for s in there if s.startswith(start)]  # all: undivided
    split = args.split or next(iter(held_out), None)
    if split is None:
        only = ", ".join(there) or "none"
        raise InputError(f"{args.data} has no test or validation split, only {only}; name one with --split.")
    phrases = [args.data, f"split {split}"]
    if args.object is not None:
        options["objects"] = args.object
        phrases += [f"object {number}" for number in args.object]
    if args.min_visible is not None:
        phrases.append(f"at least {args.min_visible:.0%} visible")
    if recognise(Path(args.data)).kind == "bop" and (part := part_of(model)) is not None:
        told = "this model knows one part; say which object of BOP's data it is, for example --object 9."
        require(args.object is not None, told)
        options["part"] = part
    return open_dataset(args.data, split, size=size, **options), ", ".join(phrases)


def rendered(model: "nn.Module", source: str | None, count: int, seed: int) -> "tuple[RotationDataset, str]":
    """Fresh renders with training's camera and light, of what the model was trained on or of what `source` names."""
    from aquamam.data.photos import PhotoDataset
    from aquamam.data.renders import RenderedDataset
    from aquamam.fit.part import fresh_renders
    from aquamam.rendering.render import RenderSettings
    from aquamam.rendering.solids import NAMES

    size = getattr(model.config, "image_size", 224)
    drawn: dict[str, Any] = {"seed": SEED + seed, "split": "test", "length": max(count, 1)}
    if source is None and (fitted := fresh_renders(model, **drawn)) is not None:
        return fitted, f"fresh renders of {fitted.classes[0]} at {size} px, drawn as in calibration, seed {SEED + seed}"
    trained: dict[str, Any] = getattr(model, "info", {}).get("data", {})
    if source is None:
        names = [str(thing.get("name")) for thing in trained.get("objects", ()) if isinstance(thing, dict)]
        shown = f"was trained on {', '.join(names)}, not all solids of ours" if names else "does not say what it shows"
        ours = len(names) > 0 and set(names) <= set(NAMES)
        require(ours, f"this model {shown}; give --data DIR or --data render:NAME, a solid or a mesh file.")
        source = ",".join(names)
    objects, kind = rendered_objects(source), "renders"
    dataset: RotationDataset
    if trained.get("photographs"):
        folder, kind = Path(trained.get("backgrounds") or "none"), "photograph-like renders"
        drawn |= {"mesh_error": trained.get("mesh_error", 0.0), "backgrounds": folder if folder.is_dir() else None}
        dataset = PhotoDataset(objects, size, lookalikes=True, **drawn)
    else:
        settings = replace(RenderSettings.from_dict(trained.get("settings", {})), size=size)
        dataset = RenderedDataset(objects, settings, lookalikes=True, **drawn)
    return dataset, f"fresh {kind} of {', '.join(dataset.classes)} at {size} px, seed {SEED + seed}"


# --- tables for people ------------------------------------------------------------------------------------------------


def lines_of(evaluation: "Evaluation", about: dict[str, Any]) -> list[str]:
    f, speed, ceiling = evaluation.figures, evaluation.throughput, evaluation.ceiling
    limit = f"ceiling {ceiling:.2f}" if math.isfinite(ceiling) else "no ceiling"
    mean = f"mean {f.mean_log_likelihood:.3f} ± {f.log_likelihood_se:.3f}, median {f.median_log_likelihood:.3f}"
    lines = [
        f"{about['model']} ({about['kind']}, {about['parameters']:,} parameters)",
        f"on {f.images:,} images: {about['data']}; {about['seconds']:.0f} s\n",
        f"log-likelihood   {mean}   (volume pi^2: uniform -2.29, {limit})",
    ]
    if evaluation.samples:
        lines.append(f"spread           {f.spread_deg:.2f} deg expected angle, {evaluation.samples} samples an image")
        lines.append(f"calibration      {evaluation.verdict}: PIT KS {f.pit_ks:.4f} (p = {f.pit_p:.2g})")
        for level in (50, 90, 95):
            share, se, held = (
                100 * getattr(f, name.format(level)) for name in ("coverage{}", "coverage{}_se", "held{}")
            )
            conformal = "" if math.isnan(held) else f", conformal set {held:.1f} %"
            lines.append(f"                 {level} % region covers {share:.1f} ± {se:.1f} %{conformal}")
    nearest = ", nearest equivalent" if evaluation.symmetric else ""
    rows = [["error in degrees", *ERRORS]]
    rows += [[f"  {name}{nearest}", *error_cells(errors)] for name, errors in evaluation.strategies.items()]
    if evaluation.symmetric:
        rows += [[f"  {name}, plain", *error_cells(errors)] for name, errors in evaluation.plain.items()]
    lines += ["", *columns(rows)]
    if unknown := [name for name, what in evaluation.symmetries.items() if what == "unknown"]:
        lines.append(f"  symmetries of {', '.join(unknown[:3])} are not known: errors are to the given rotation alone")
    if len(evaluation.classes) > 1:
        sampled = ["spread", "KS", "cover 90"] if evaluation.samples else []
        rows = [["class", "images", "mean LL", *ERRORS, *sampled]]
        for name, one in [*list(evaluation.classes.items())[:MANY_CLASSES], ("mean of classes", evaluation.class_mean)]:
            drawn = [f"{one.spread_deg:.2f}", f"{one.pit_ks:.3f}", f"{one.coverage90:.1%}"]
            rows.append(
                [name, f"{one.images:,}", f"{one.mean_log_likelihood:.3f}", *error_cells(one), *drawn[: len(sampled)]]
            )
        lines += ["", *columns(rows)]
    rates = {"log-likelihoods": speed.likelihoods, **speed.predictions, "samples": speed.samples}
    told = ", ".join(f"{name} {rate:,.0f}/s" for name, rate in rates.items() if rate)
    where = f"on {speed.device}, processes: {speed.processes}, threads of each: {speed.threads}"
    lines.append(f"\nthroughput       {told}")
    lines.append(f"                 medians over batches of {speed.batch_size}, encoding included, {where}")
    if evaluation.unreadable:
        lines.append(f"left out         {len(evaluation.unreadable)} unreadable, first: {evaluation.unreadable[0]}")
    return lines


def error_cells(errors: "Errors") -> list[str]:
    angles = [f"{angle:.2f}" for angle in (errors.mean_error_deg, errors.median_error_deg)]
    return [*angles, f"{errors.acc15:.1%}", f"{errors.acc30:.1%}"]
