"""One command from a mesh to a usable model: symmetries, training on renders, calibration, a page that judges it.

aquamam fit part.stl                              an hour; part/ holds model, page and symmetries
aquamam fit part.obj --time-budget 30m --out models/part
aquamam fit part.stl --plain                      clean renders on white, for parts that are never photographed
aquamam predict photo.png --model part/           serve, plot, export and evaluate take the folder too

Stopped, the same command goes on; with a longer --time-budget it goes on learning.
"""

import argparse
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aquamam.cli.main import MESH, add, columns, given, with_settings
from aquamam.errors import InputError

if TYPE_CHECKING:
    from aquamam.fit.pipeline import FitConfig


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("part", metavar="OBJECT", help=MESH)
    add(parser, "--time-budget", default="60m", help="for all of it: 30m, 2h, ...")
    option("--out", type=Path, metavar="DIR", help="the part's folder (default: the file's name)")
    option("--plain", action="store_true", help="plain renders: no random lights, backgrounds, blur or occluders")
    share = "share of plain renders among the training pictures, for parts seen in renders, too (default: 0)"
    option("--plain-share", type=float, default=0.0, metavar="SHARE", help=share)
    add(parser, "--backgrounds")
    told = "how far the real part may differ from its mesh, as a share of its size (default: 0.08; an exact one: 0)"
    option("--unit", choices=["mm", "cm", "m"], default="", help="of the mesh's file; translations are told in it")
    option("--mesh-error", type=float, default=0.08, metavar="SHARE", help=told)
    add(parser, "--size")
    add(parser, "--steps", help="train for so many steps instead of by the clock")
    option("--held-out", type=int, metavar="N", help="images to calibrate on, and to judge on (default: up to 2000)")
    option("--views", type=int, metavar="N", help="directions of the ambiguity map (default: up to 96)")
    option("--preset", default="die-small", help="size and schedule of the model")
    begin = "a model of the same size whose weights to start from, or none (default: the bundled die, if of that size)"
    option("--from", dest="start", metavar="MODEL", help=begin)
    add(parser, "--set", "--tolerance", "--seed", "--device", "--untextured")
    add(parser, "--json", help="print what fit.json says")
    add(parser, "--quiet")


def run(args: argparse.Namespace) -> None:
    from aquamam.checkpoints.checkpoint import usable
    from aquamam.fit.pipeline import Fit

    config, out = config_of(args), args.out or Path(Path(args.part).stem)
    usable(args.device or "cpu")

    def say(line: str) -> None:
        print(line, file=sys.stderr if args.json else sys.stdout, flush=True)

    facts = Fit(args.part, out, config, say=say, **given(args, "quiet", "device", "untextured")).run()
    print(json.dumps(facts) if args.json else "\n".join(lines_of(facts, out)))


def config_of(args: argparse.Namespace) -> "FitConfig":
    """The fit that the arguments ask for."""
    from aquamam.checkpoints.checkpoint import load
    from aquamam.fit.pipeline import TRAINING_SHARE, FitConfig, settings_for
    from aquamam.network.model import ModelConfig
    from aquamam.training.presets import preset

    chosen, budget = preset(args.preset), args.time_budget
    if not isinstance(chosen.model, ModelConfig) or chosen.model.embedding == "category":
        raise InputError(f"a fit needs an AQuaMaM that reads images, {args.preset!r} is none; try die-small.")
    model = replace(chosen.model, image_size=args.size, pose=not args.plain)
    train = replace(
        chosen.train,
        time_budget=0.0 if args.steps else round(TRAINING_SHARE * budget, 3),
        steps=args.steps or chosen.train.steps,
        seed=args.seed,
        schedule="cosine",
        augment="none",  # the renders are varied themselves, held-out ones too
        validate_every=100 if budget < 900 else 250,
        validation_size=500,
        checkpoint_seconds=30.0,
    )
    model, train = with_settings(dict(args.set), model, train)
    start = None if args.start == "none" else args.start or "die"  # which has seen three million pictures
    if start is not None and (there := load(start).config) != model:
        if args.start is not None:
            differ = next(key for key, value in model.to_dict().items() if there.to_dict().get(key) != value)
            size = "--from needs a model of the size that is fitted"
            raise InputError(f"{size}, and {start} has another {differ}; try none.")
        start = None
    sizes = settings_for(budget) | given(args, "held_out", "views")
    return FitConfig(
        model=model,
        train=train,
        start=start,
        plain_share=1.0 if args.plain else args.plain_share,
        groups=min(max(sizes["held_out"] // 300, 1), 6),
        **sizes,
        **given(args, "backgrounds", "mesh_error", "unit", "tolerance"),
    )


def lines_of(facts: dict[str, Any], out: Path) -> list[str]:
    """The judgement for people."""
    f = facts["evaluation"]
    ceiling = "" if f["ceiling"] is None else f", ceiling {f['ceiling']:.2f}"
    likelihood = f"{f['mean_log_likelihood']:.3f} ± {f['log_likelihood_se']:.3f} (uniform -2.29{ceiling})"
    error = f"error median {f['median_error_deg']:.2f}°, mean {f['mean_error_deg']:.2f}°"
    spread = f"within 15° {100 * f['acc15']:.1f} %, spread {f['spread_deg']:.2f}°"
    rows, missed = [["views that fit", "images", "mean LL", "median error", "50 % set", "90 % set", "95 % set"]], False
    for row in facts["classes"]:
        numbers = [f"{row['images']:,}", f"{row['mean_log_likelihood']:.2f}", f"{row['median_error_deg']:.2f}°"]
        for one in row["coverage"].values():
            numbers.append(f"{100 * one['share']:.1f} ± {100 * one['se']:.1f}{' ' if one['within_two_se'] else '!'}")
            missed |= not one["within_two_se"]
        rows.append([row["words"], *numbers])
    lines = ["", f"log-likelihood {likelihood}, {error}, {spread}", "", *columns(rows)]
    lines += ["! more than two standard errors from what the set promises"] if missed else []
    if f["acc15"] < 0.5:
        lines.append("few predictions are right yet: the same command with a longer --time-budget goes on learning")
    return [*lines, "", f"the page is {out / 'index.html'}; try: aquamam predict photo.png --model {out}/"]
