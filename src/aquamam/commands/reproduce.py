"""`aquamam reproduce`: an experiment of the paper, its numbers as a table and OUT/NAME.json, its figures as PNG."""

import argparse
import os
from pathlib import Path
from typing import Any

HELP = "Run an experiment of the paper; write OUT/NAME.json and figures."
EXAMPLES = """  aquamam reproduce toy                       63 rotations of six viewpoints: a few minutes on two cores
  aquamam reproduce toy --batches sampled     the same with random batches of 128, as in the paper
  aquamam reproduce toy --optimizer paper     the paper's recipe to the letter: hours
  aquamam reproduce peak                      all probability on one rotation
  aquamam reproduce hemisphere                Figure 2: a density on the disk becomes one on the hemisphere
A run that was stopped goes on when the same command is run again.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    experiments = parser.add_subparsers(dest="experiment", metavar="EXPERIMENT", required=True)

    toy = experiments.add_parser("toy", help="Section 4.1: mode proportions, wrong sentences, distances")
    _common(toy, "toy")
    _fitting(toy)
    toy.add_argument("--samples", type=int, default=40_000, help="from the hierarchical model (default: 40000)")
    toy.add_argument(
        "--systems", nargs="+", default=["aquamam"], metavar="NAME", help="which systems to run (default: aquamam)"
    )
    toy.set_defaults(experiment_run=_run_toy)

    peak = experiments.add_parser("peak", help="appendix: all probability on one rotation")
    _common(peak, "peak")
    _fitting(peak)
    peak.add_argument(
        "--rotation", type=float, nargs=4, metavar=("X", "Y", "Z", "W"),
        help="unit quaternion xyzw (default: one at which the bins allow the paper's 29.51)",
    )  # fmt: skip
    peak.set_defaults(experiment_run=_run_peak)

    hemisphere = experiments.add_parser("hemisphere", help="Figure 2: from the disk to the hemisphere")
    _common(hemisphere, "hemisphere")
    hemisphere.add_argument("--points", type=int, default=500_000, help="to fit the mixture to (default: 500000)")
    hemisphere.add_argument("--bins", type=int, default=200, help="on each axis of the disk (default: 200)")
    hemisphere.set_defaults(experiment_run=_run_hemisphere)


def _common(parser: argparse.ArgumentParser, name: str) -> None:
    parser.add_argument("--out", type=Path, default=Path("out") / name, help=f"folder to write (default: out/{name})")
    parser.add_argument("--seed", type=int, default=0, help="of everything random (default: 0)")


def _fitting(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--optimizer", choices=["fast", "paper"], default="fast",
        help="fast: minutes; paper: Adam 1e-4, random batches, halved on plateaus, as in Section A.5 (default: fast)",
    )  # fmt: skip
    parser.add_argument(
        "--batches", choices=["expected", "sampled"],
        help="the exact expected loss, or random batches of 128 (default: expected; sampled for --optimizer paper)",
    )  # fmt: skip
    parser.add_argument(
        "--steps",
        type=int,
        help="optimiser steps (default: 700 for the toy, 300 for the peak, 195312 for --optimizer paper)",
    )
    parser.add_argument("--lr", type=float, help="largest learning rate")
    parser.add_argument("--threads", type=int, help="cores to use (default: all)")


def fit_config(args: argparse.Namespace, **defaults: Any) -> Any:
    """The recipe that the arguments ask for."""
    from dataclasses import replace

    from aquamam.experiments.fit import RECIPES

    given = {name: getattr(args, name) for name in ("batches", "steps", "lr", "seed")}
    chosen = {name: value for name, value in given.items() if value is not None}
    return replace(RECIPES[args.optimizer], **{**(defaults if args.optimizer == "fast" else {}), **chosen})


def run(args: argparse.Namespace) -> int:
    # On a shared machine two threads that spin while they wait for each other cost three times the work itself.
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")
    if getattr(args, "threads", None) is not None:
        import torch

        from aquamam.errors import InputError

        if args.threads < 1:
            raise InputError(f"--threads must be a positive whole number, got {args.threads}.")
        torch.set_num_threads(args.threads)
    return args.experiment_run(args)


def _run_toy(args: argparse.Namespace) -> int:
    from aquamam.experiments import toy
    from aquamam.experiments.results import table

    result = toy.run(args.out, fit_config(args), args.samples, tuple(args.systems))
    paper = result["paper"]
    print(
        table(
            [
                ("toy, AQuaMaM", "here", "paper", "bound"),
                ("log-likelihood (volume pi^2)", f"{result['log_likelihood']:.4f}", f"{paper['log_likelihood']}", f"<= {result['ceiling']:.4f}"),
                (f"wrong sentences of {result['samples']:,}", f"{result['wrong_sentences']}", f"{paper['wrong_sentences']}", ""),
                ("mean distance to a mode (deg)", f"{result['mean_distance_deg']:.4f}", f"{paper['mean_distance_deg']}", ""),
                ("seconds, training + sampling", f"{result['training_seconds']:.0f} + {result['sampling_seconds']:.0f}", "9000 (V100)", ""),
                ("CPU seconds, all threads", f"{result['cpu_seconds']:.0f}", "", ""),
            ]
        )
    )  # fmt: skip
    print()
    head = (
        "viewpoint",
        "modes",
        "samples",
        "total variation",
        "of truth",
        "ratio",
        "chi-square p",
        "exact TV",
        "stray mass",
    )
    rows = [head]
    for v in result["viewpoints"]:
        ratio = v["total_variation"] / v["total_variation_of_truth"] if v["total_variation_of_truth"] else 0.0
        rows.append(
            (
                str(v["viewpoint"]), str(len(v["counts"])), f"{v['samples']:,}", f"{v['total_variation']:.4f}",
                f"{v['total_variation_of_truth']:.4f}", f"{ratio:.2f}", f"{v['p_value']:.3f}",
                f"{v['exact_total_variation']:.1e}", f"{v['stray']:.1e}",
            )
        )  # fmt: skip
    print(table(rows))
    print(f"\n{args.out}: toy.json, toy_proportions.png, toy_curve.png, model.safetensors")
    return 0


def _run_peak(args: argparse.Namespace) -> int:
    import torch

    from aquamam.experiments import peak
    from aquamam.experiments.results import table

    rotation = None if args.rotation is None else torch.tensor(args.rotation, dtype=torch.float64)
    result = peak.run(args.out, fit_config(args, steps=peak.QUICK.steps), rotation)
    paper = result["paper"]
    q = ", ".join(f"{x:.4f}" for x in result["rotation_xyzw"])
    print(f"peak at the rotation xyzw = ({q}), an angle of {result['angle_deg']:.1f} degrees")
    print(
        table(
            [
                ("log-likelihood", "here", "ceiling", "paper", "flow of Liu et al. 2023"),
                ("volume pi^2", f"{result['log_likelihood']:.4f}", f"{result['ceiling']:.4f}", f"{paper['log_likelihood']}", ""),
                ("volume 1", f"{result['log_likelihood_volume_1']:.4f}", f"{result['ceiling_volume_1']:.4f}", "", f"{paper['flow_of_liu_2023_volume_1']}"),
            ]
        )
    )  # fmt: skip
    print(
        f"\n{result['steps']} steps in {result['seconds']:.0f} s; {args.out}: peak.json, peak_curve.png, model.safetensors"
    )
    return 0


def _run_hemisphere(args: argparse.Namespace) -> int:
    from aquamam.experiments import hemisphere
    from aquamam.experiments.results import table

    result = hemisphere.run(args.out, seed=args.seed, points=args.points, bins=args.bins)
    print(
        table(
            [
                (f"mean density of {result['shown']:,} points", "here", "expected", "paper"),
                ("mixture of whole bins", f"{result['mean_density']:.3f}", f"{result['expected_mean_density']:.3f}", f"{result['paper']['mean_density']}"),
                ("bins cut at the rim", f"{result['mean_density_cut_bins']:.3f}", f"{result['true_density']:.3f}", ""),
                ("truth, 1 / 2 pi", f"{result['true_density']:.3f}", "", f"{result['true_density']:.3f}"),
            ]
        )
    )  # fmt: skip
    print(f"\n{args.out}: hemisphere.json, hemisphere.png")
    return 0
