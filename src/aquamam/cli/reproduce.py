"""`aquamam reproduce`: an experiment of the paper, its numbers as a table and OUT/NAME.json, its figures as PNG, its section as HTML."""

import argparse
import os
from pathlib import Path
from typing import Any

from aquamam.cli.options import seed as seed_number

HELP = "Run an experiment of the paper; write OUT/NAME.json, figures and a page."
EXAMPLES = """  aquamam reproduce toy                       63 rotations of six viewpoints: a few minutes on two cores
  aquamam reproduce toy --systems aquamam ipdf mog
  aquamam reproduce toy --batches sampled     the same with random batches of 128, as in the paper
  aquamam reproduce toy --scale paper --device cuda    the paper's recipe to the letter
  aquamam reproduce die --model runs/die      Figures 7 and 8 from a trained model
  aquamam reproduce all --out out/report      everything, bound into out/report/report.html
  aquamam reproduce comparison                all systems on distributions of known density: docs/comparison.md
A fit that was stopped goes on when the same command is run again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    experiments = parser.add_subparsers(dest="experiment", metavar="EXPERIMENT", required=True)

    def add(name: str, help: str, run: Any, *, scale: bool = False, seed: bool = True) -> argparse.ArgumentParser:
        sub = experiments.add_parser(name, help=help)
        sub.add_argument("--out", type=Path, default=Path("out") / name, help=f"folder to write (default: out/{name})")
        if seed:
            sub.add_argument("--seed", type=seed_number, default=0, help="of everything random (default: 0)")
        if scale:
            sub.add_argument(
                "--scale", choices=["cpu", "paper"], default="cpu",
                help="cpu: reduced where it must be, and said so; paper: the paper's sizes, for a GPU (default: cpu)",
            )  # fmt: skip
        sub.add_argument("--threads", type=int, help="cores to use (default: all)")
        sub.set_defaults(experiment_run=run)
        return sub

    unimodal = add("unimodal", "Figure 1: the Bingham estimate between two rotations", _run_unimodal)
    unimodal.add_argument("--steps", type=int, default=600, help="of the fit (default: 600)")

    hemisphere = add("hemisphere", "Figure 2: from the disk to the hemisphere", _run_hemisphere)
    hemisphere.add_argument("--points", type=int, default=500_000, help="to fit the mixture to (default: 500000)")
    hemisphere.add_argument("--bins", type=int, default=200, help="on each axis of the disk (default: 200)")

    constraint = add("constraint", "Figure 3: legal, cut and illegal bins", _run_constraint, seed=False)
    constraint.add_argument("--qx", type=float, default=0.7, help="the first component (default: 0.7)")
    constraint.add_argument("--bins", type=int, default=10, help="of [-1, 1] (default: 10)")

    toy = add("toy", "Section 4.1, Figures 5 and 6: mode proportions, wrong sentences, distances", _run_toy, scale=True)
    _fitting(toy)
    _others(toy)
    _device(toy)
    toy.add_argument(
        "--systems", nargs="+", default=["aquamam"], metavar="NAME", help="of aquamam, ipdf and mog (default: aquamam)"
    )

    mog = add("mog", "appendix: mixtures of Gaussians instead of bins", _run_mog, scale=True)
    _others(mog)
    _device(mog)

    peak = add("peak", "appendix: all probability on one rotation", _run_peak, scale=True)
    _fitting(peak)
    _device(peak)
    peak.add_argument(
        "--rotation", type=float, nargs=4, metavar=("X", "Y", "Z", "W"),
        help="unit quaternion xyzw (default: one at which the bins allow the paper's 29.51)",
    )  # fmt: skip

    for name, help in (("die", "Section 4.2, Figures 7 and 8"), ("cylinder", "appendix, Figure 9")):
        sub = add(name, f"{help}, from a trained model", _run_object)
        sub.add_argument("--model", help=f"bundled name or checkpoint (default: {name}, if it is bundled)")
        sub.add_argument("--images", type=int, default=300, help="fresh renders to judge it on (default: 300)")

    throughput = add("throughput", "Section 4.2: likelihood and prediction against IPDF", _run_throughput)
    _throughput(throughput)

    comparison = add("comparison", "all systems on distributions of known density", _run_comparison, scale=True)
    comparison.add_argument("--seconds", type=float, help="CPU seconds of a fit (default: 5; 600 at the scale paper)")
    comparison.add_argument("--systems", nargs="+", metavar="NAME", help="some of them (default: all)")
    comparison.add_argument("--distributions", nargs="+", metavar="NAME", help="some of them (default: all)")
    comparison.add_argument("--page", type=Path, help="where to write the page (default: OUT/comparison.md)")

    everything = add("all", "all of them, bound into one report", _run_all, scale=True)
    _fitting(everything)
    _others(everything)
    _device(everything)
    _throughput(everything)
    everything.add_argument(
        "--systems", nargs="+", default=["aquamam", "ipdf", "mog"], metavar="NAME", help="on the toy (default: all)"
    )
    everything.add_argument("--die", metavar="MODEL", help="the die's model (default: the bundled one)")
    everything.add_argument("--cylinder", metavar="MODEL", help="the cylinder's model (default: the bundled one)")
    everything.add_argument("--images", type=int, default=300, help="fresh renders of each object (default: 300)")
    everything.add_argument("--only", nargs="+", metavar="NAME", help="some of the experiments (default: all)")
    everything.add_argument("--keep", action="store_true", help="take results that are already in OUT")  # fmt: skip


def _fitting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--optimizer", choices=["fast", "paper"],
        help="of AQuaMaM; fast: minutes; paper: Adam 1e-4, random batches, halved on plateaus, as in Section A.5 (default: by the scale)",
    )  # fmt: skip
    parser.add_argument(
        "--batches", choices=["expected", "sampled"],
        help="the exact expected loss, or random batches of 128 (default: expected; sampled for --optimizer paper)",
    )  # fmt: skip
    parser.add_argument(
        "--steps",
        type=int,
        help="AQuaMaM's optimiser steps (default: 700 for the toy, 300 for the peak, 195312 for --optimizer paper)",
    )
    parser.add_argument("--lr", type=float, help="largest learning rate")


def _device(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        default="cpu",
        help="where the models are fitted: cpu, cuda, ...; the rest is on the CPU (default: cpu)",
    )


def _others(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--samples", type=int, default=40_000, help="from the hierarchical model (default: 40000)")
    parser.add_argument("--other-steps", type=int, help="steps of IPDF and MoG (default: by the scale)")
    parser.add_argument("--negatives", type=int, help="of IPDF (default: 511; 4095 at the scale paper)")
    parser.add_argument("--level", type=int, help="of IPDF's grid of 72 * 8^level rotations (default: 4; 5 at the scale paper)")  # fmt: skip


def _throughput(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=3, help="interleaved measurements (default: 3)")
    parser.add_argument("--timed-level", type=int, default=5, help="of IPDF's grid when it is timed (default: 5)")


def fit_config(args: argparse.Namespace, **defaults: Any) -> Any:
    """AQuaMaM's recipe that the arguments ask for."""
    from dataclasses import replace

    from aquamam.reproduce.fit_pairs import RECIPES

    optimizer = args.optimizer or ("paper" if args.scale == "paper" else "fast")
    given = {name: getattr(args, name) for name in ("batches", "steps", "lr", "seed")}
    chosen = {name: value for name, value in given.items() if value is not None}
    return replace(RECIPES[optimizer], **{**(defaults if optimizer == "fast" else {}), **chosen})


def scale_of(args: argparse.Namespace) -> Any:
    """The other systems' sizes that the arguments ask for."""
    from dataclasses import replace

    from aquamam.geometry.grid import grid_size
    from aquamam.reproduce.toy_others import SCALES

    scale = SCALES[args.scale]
    steps = {} if args.other_steps is None else {"steps": args.other_steps}
    given = {"negatives": args.negatives, "level": args.level}
    chosen = {name: value for name, value in given.items() if value is not None}
    grid_size(chosen.get("level", scale.level))
    ipdf, mog = (replace(fit, seed=args.seed, **steps) for fit in (scale.ipdf, scale.mog))
    return replace(scale, ipdf=ipdf, mog=mog, **chosen)


def run(args: argparse.Namespace) -> int:
    # On a shared machine two threads that spin while they wait for each other cost three times the work itself.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if args.threads is not None:
        import torch

        from aquamam.errors import InputError

        if args.threads < 1:
            raise InputError(f"--threads must be a positive whole number, got {args.threads}.")
        torch.set_num_threads(args.threads)
    if getattr(args, "device", "cpu") != "cpu":
        from aquamam.training.distributed import usable

        usable(args.device)
    return args.experiment_run(args)


def _tell(args: argparse.Namespace, result: dict[str, Any]) -> int:
    from aquamam.reproduce.sections import Section

    section = Section.from_dict(result["section"])
    print(section.lines())
    files = [f"{section.name}.json", f"{section.name}.html", *(figure.file for figure in section.figures)]
    print(f"\n{args.out}: {', '.join(files)}")
    return 0


def _run_unimodal(args: argparse.Namespace) -> int:
    from aquamam.reproduce import unimodal

    return _tell(args, unimodal.run(args.out, seed=args.seed, steps=args.steps))


def _run_hemisphere(args: argparse.Namespace) -> int:
    from aquamam.reproduce import hemisphere

    return _tell(args, hemisphere.run(args.out, seed=args.seed, points=args.points, bins=args.bins))


def _run_constraint(args: argparse.Namespace) -> int:
    from aquamam.reproduce import constraint

    return _tell(args, constraint.run(args.out, first=args.qx, bins=args.bins))


def _run_toy(args: argparse.Namespace) -> int:
    from aquamam.reproduce import toy
    from aquamam.reproduce.results import table

    result = toy.run(args.out, fit_config(args), args.samples, tuple(args.systems), scale_of(args), args.device)
    for name in args.systems:
        print(table(toy.viewpoint_rows(name, result if name == result["system"] else result[name])), end="\n\n")
    return _tell(args, result)


def _run_mog(args: argparse.Namespace) -> int:
    from aquamam.reproduce import mog

    return _tell(args, mog.run(args.out, scale_of(args), samples=args.samples, device=args.device))


def _run_peak(args: argparse.Namespace) -> int:
    import torch

    from aquamam.reproduce import peak

    rotation = None if args.rotation is None else torch.tensor(args.rotation, dtype=torch.float64)
    return _tell(args, peak.run(args.out, fit_config(args, steps=peak.QUICK.steps), rotation, device=args.device))


def _run_object(args: argparse.Namespace) -> int:
    from aquamam.reproduce import objects

    return _tell(args, objects.run(args.out, args.experiment, model=args.model, images=args.images, seed=args.seed))


def _run_throughput(args: argparse.Namespace) -> int:
    from aquamam.reproduce import throughput

    return _tell(args, throughput.run(args.out, level=args.timed_level, rounds=args.rounds, seed=args.seed))


def _run_comparison(args: argparse.Namespace) -> int:
    from aquamam.reproduce import comparison

    seconds = args.seconds if args.seconds is not None else {"cpu": 5.0, "paper": 600.0}[args.scale]
    result = comparison.run(
        args.out, seconds=seconds, seed=args.seed, systems=args.systems, distributions=args.distributions
    )
    page = args.page or args.out / "comparison.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(comparison.markdown(result), encoding="utf-8")
    print(comparison.markdown(result))
    print(f"{page}, {args.out / 'comparison.json'}")
    return 0


def _run_all(args: argparse.Namespace) -> int:
    from aquamam.reproduce import constraint, everything, hemisphere, mog, objects, peak, throughput, toy, unimodal

    scale, seed = scale_of(args), args.seed
    steps = {} if args.steps is None else {"steps": args.steps}

    def shown(name: str, model: str | None) -> Any:
        return lambda out: objects.run(out, name, model=model, images=args.images, seed=seed)

    runs = {
        "unimodal": lambda out: unimodal.run(out, seed=seed),
        "hemisphere": lambda out: hemisphere.run(out, seed=seed),
        "constraint": lambda out: constraint.run(out),
        "toy": lambda out: toy.run(out, fit_config(args), args.samples, tuple(args.systems), scale, args.device),
        "mog": lambda out: mog.run(out, scale, samples=args.samples, device=args.device),
        "peak": lambda out: peak.run(out, fit_config(args, **{"steps": peak.QUICK.steps, **steps}), device=args.device),
        "die": shown("die", args.die),
        "cylinder": shown("cylinder", args.cylinder),
        "throughput": lambda out: throughput.run(out, level=args.timed_level, rounds=args.rounds, seed=seed),
    }
    report = everything.run(args.out, runs, only=args.only, keep=args.keep, optional=("die", "cylinder"))
    for section in report.sections:
        print(section.lines(), end="\n\n")
    for line in report.missing:
        print(line)
    print(f"{report.page}: the whole report")
    return 0
