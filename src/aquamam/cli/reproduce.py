"""Run an experiment of the paper; write OUT/NAME.json, figures and a page.

aquamam reproduce toy                       63 rotations of six viewpoints: a few minutes on two cores
aquamam reproduce toy --systems aquamam ipdf mog
aquamam reproduce toy --batches sampled     the same with random batches of 128, as in the paper
aquamam reproduce toy --scale paper --device cuda    the paper's recipe to the letter
aquamam reproduce die --model runs/die      Figures 7 and 8 from a trained model
aquamam reproduce die --mesh cube.obj --images 10000     the same with the paper's mesh, beside its figures
aquamam reproduce all --out out/report      everything, bound into out/report/report.html
aquamam reproduce comparison                all systems on distributions of known density: docs/comparison.md

A fit that was stopped goes on when the same command is run again.
"""

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from aquamam.cli.main import SHARED, columns, given, whole
from aquamam.files import write_text

FIT = "--seed --scale --device --optimizer --batches --steps --lr"
OTHERS = "--samples --other-steps --negatives --level --systems"
OBJECT = "--seed --images --model --mesh --ipdf --grid-images --level"
KNOWN = "--seed --scale --seconds --systems --distributions --page"
# name: what it is, and its options beside --out and --threads
EXPERIMENTS = {
    "unimodal": ("Figure 1: the Bingham estimate between two rotations", "--seed --steps"),
    "hemisphere": ("Figure 2: from the disk to the hemisphere", "--seed"),
    "constraint": ("Figure 3: legal, cut and illegal bins", ""),
    "toy": ("Section 4.1, Figures 5 and 6: shares of modes", f"{FIT} {OTHERS}"),
    "mog": ("appendix: mixtures of Gaussians instead of bins", "--seed --scale --device --samples --other-steps"),
    "peak": ("appendix: all probability on one rotation", f"{FIT} --rotation"),
    "die": ("Section 4.2, Figures 7 and 8, from a trained model", OBJECT),
    "cylinder": ("appendix, Figure 9, from a trained model", OBJECT),
    "throughput": ("Section 4.2: likelihood and prediction against IPDF", "--seed --rounds --level"),
    "comparison": ("all systems on distributions of known density", KNOWN),
    "all": ("all of them but the comparison, bound into one report", "--seed --scale --device --only --keep"),
}
SOME: dict[str, Any] = {"nargs": "+", "metavar": "NAME"}
UNIT = "unit quaternion xyzw (default: one at which the bins allow the paper's 29.51)"
OPTIONS: dict[str, dict[str, Any]] = {
    "--scale": {"choices": ["cpu", "paper"], "default": "cpu", "help": "reduced, and said so; or the paper's sizes"},
    "--device": {"help": "where the models are fitted: cpu, cuda, ...; the rest is on the CPU (default: cpu)"},
    "--optimizer": {"choices": ["fast", "paper"], "help": "of AQuaMaM; paper: Adam 1e-4 (default: by the scale)"},
    "--batches": {"choices": ["expected", "sampled"], "help": "exact expected loss, or 128 drawn at random"},
    "--lr": {"type": float, "help": "largest learning rate"},
    "--samples": {"type": whole(1), "help": "from the hierarchical model (default: 40000)"},
    "--other-steps": {"type": whole(1), "help": "steps of IPDF and MoG (default: by the scale)"},
    "--negatives": {"type": whole(1), "help": "of IPDF (default: 511; 4095 at the scale paper)"},
    "--level": {"type": whole(0), "help": "of IPDF's grid of 72 * 8^level rotations (default: by the experiment)"},
    "--systems": {**SOME, "help": "some of them (default: all; aquamam alone for toy)"},
    "--rotation": {"type": float, "nargs": 4, "metavar": ("X", "Y", "Z", "W"), "help": UNIT},
    "--images": {"type": whole(1), "help": "fresh renders of an object to judge its model on (default: 300)"},
    "--model": {"default": None, "help": "bundled name or checkpoint (default: NAME-plain, with --mesh NAME-paper)"},
    "--mesh": {"metavar": "FILE", "help": "the paper's own mesh, cube.obj or cylinder.obj, instead of our object"},
    "--ipdf": {"metavar": "MODEL", "help": "a trained IPDF to judge on some of the same renders"},
    "--grid-images": {"type": whole(1), "help": "so many of them: a grid takes seconds an image (default: 20)"},
    "--rounds": {"type": whole(1), "help": "interleaved measurements (default: 3)"},
    "--seconds": {"type": float, "help": "CPU seconds of a fit (default: 5; 600 at the scale paper)"},
    "--distributions": {**SOME, "help": "some of them (default: all)"},
    "--page": {"type": Path, "help": "where to write the page (default: OUT/comparison.md)"},
    "--only": {**SOME, "help": "some of the experiments (default: all)"},
    "--keep": {"action": "store_true", "help": "take results that are already in OUT"},
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    experiments = parser.add_subparsers(dest="experiment", metavar="EXPERIMENT", required=True)
    for name, (help, options) in EXPERIMENTS.items():
        sub = experiments.add_parser(name, help=help, formatter_class=parser.formatter_class)
        sub.add_argument("--out", type=Path, default=Path("out") / name, metavar="DIR", help="folder to write")
        for option in ["--threads", *options.split()]:
            sub.add_argument(option, **{**SHARED.get(option, {}), **OPTIONS.get(option, {})})


def run(args: argparse.Namespace) -> None:
    import torch

    from aquamam.checkpoints.checkpoint import usable

    torch.set_num_threads(args.threads or torch.get_num_threads())
    usable(getattr(args, "device", None) or "cpu")
    if args.experiment == "comparison":
        from aquamam.reproduce import comparison

        seconds = args.seconds if args.seconds is not None else {"cpu": 5.0, "paper": 600.0}[args.scale]
        chosen = given(args, "seed", "systems", "distributions")
        page = comparison.markdown(comparison.run(args.out, seconds=seconds, **chosen))
        path = write_text(args.page or args.out / "comparison.md", page)
        print(f"{page}\n{path}, {args.out / 'comparison.json'}")
    elif args.experiment == "all":
        from aquamam.reproduce.report import bind

        args.systems = ["aquamam", "ipdf", "mog"]
        sections = bind(args.out, experiments(args), only=args.only, keep=args.keep)
        print("\n\n".join([*map(text_of, sections), f"{args.out / 'report.html'}: the whole report"]))
    else:
        section = experiments(args)[args.experiment](args.out)["section"]
        files = [f"{args.experiment}.json", f"{args.experiment}.html", *(one["file"] for one in section["figures"])]
        print(f"{text_of(section)}\n\n{args.out}: {', '.join(files)}")


def text_of(section: dict[str, Any]) -> str:
    """A report's section for a terminal."""
    names = [name for name in ("what", "here", "paper", "ceiling") if any(row[name] for row in section["rows"])]
    head = ["" if name == "what" else name for name in names]
    rows = [[row[name] for name in names] for row in section["rows"]]
    parts = [section["title"], "\n".join(columns([head, *rows])), *section["text"]]
    if section["reductions"]:
        parts.append("\n".join(["Reduced against the paper:", *(f"- {line}" for line in section["reductions"])]))
    return "\n\n".join(parts)


def experiments(args: argparse.Namespace) -> dict[str, Callable[[Path], dict[str, Any]]]:
    """The experiments with the options that were given."""
    from aquamam.reproduce import comparison, figures, objects, toy

    mine, size = partial(given, args), getattr(args, "scale", "cpu")
    fast = mine("optimizer").get("optimizer", {"cpu": "fast"}.get(size)) == "fast"
    recipe = replace(toy.SCALES["cpu" if fast else "paper"].aquamam, **mine("batches", "steps", "lr", "seed"))
    peak = replace(recipe, steps=toy.QUICK_PEAK.steps) if fast and not mine("steps") else recipe
    others = mine("seed") | ({"steps": args.other_steps} if mine("other_steps") else {})
    ipdf, mog = (replace(getattr(toy.SCALES[size], name), **others) for name in ("ipdf", "mog"))
    grid = replace(toy.SCALES[size].grid, **mine("negatives", "level"))
    scale = replace(toy.SCALES[size], aquamam=recipe, ipdf=ipdf, mog=mog, grid=grid)
    shown = mine("images", "seed", "model", "mesh", "ipdf", "grid_images", "level")
    return {
        "unimodal": partial(figures.unimodal, **mine("seed", "steps")),
        "hemisphere": partial(figures.hemisphere, **mine("seed")),
        "constraint": figures.constraint,
        "toy": partial(toy.run, scale=scale, **mine("samples", "systems", "device")),
        "mog": partial(toy.run_mog, scale=scale, **mine("samples", "device")),
        "peak": partial(toy.run_peak, config=peak, **mine("rotation", "device")),
        "die": partial(objects.run, name="die", **shown),
        "cylinder": partial(objects.run, name="cylinder", **shown),
        "throughput": partial(comparison.throughput, **mine("rounds", "seed", "level")),
    }
