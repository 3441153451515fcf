"""`aquamam fit`: from a mesh to a calibrated model of it, in one folder."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aquamam.cli.options import add_untextured, seed

if TYPE_CHECKING:
    from aquamam.fit.pipeline import FitConfig

HELP = "One command from a mesh to a usable model: symmetries, training on renders, calibration, and a page that judges it."
EXAMPLES = """  aquamam fit part.stl                              an hour; part/ holds model, page and symmetries
  aquamam fit part.obj --time-budget 30m --out models/part
  aquamam fit part.stl --plain                      clean renders on white, for parts that are rendered and never photographed
  aquamam predict photo.png --model part/           serve, plot, export and evaluate take the folder too
Stopped, the same command goes on; with a longer --time-budget it goes on learning.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("part", help="a mesh file (.obj, .ply, .stl, .glb, .gltf, .off) or a solid's name")
    parser.add_argument(
        "--time-budget", default="60m", metavar="TIME", help="for all of it: 30m, 2h, ... (default: 60m)"
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="the part's folder (default: the file's name)")
    parser.add_argument(
        "--plain", action="store_true", help="clean renders: no random lights, backgrounds, blur or occluders"
    )
    parser.add_argument("--size", type=int, default=64, metavar="PX", help="side of the images (default: 64)")
    parser.add_argument("--steps", type=int, metavar="N", help="train for so many steps instead of by the clock")
    parser.add_argument(
        "--held-out", type=int, metavar="N", help="images to calibrate on, and to judge on (default: up to 2000)"
    )
    parser.add_argument("--views", type=int, metavar="N", help="directions of the ambiguity map (default: up to 96)")
    parser.add_argument(
        "--tolerance", type=float, default=0.01, metavar="SHARE",
        help="of symmetries: how far a surface may move, as a share of the radius (default: 0.01)",
    )  # fmt: skip
    parser.add_argument("--preset", default="die-small", help="the model to start from (default: die-small)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="FIELD=VALUE", help="override any field of the model or training"
    )
    parser.add_argument("--seed", type=seed, default=0, help="of weights, renders and noise (default: 0)")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: a GPU if there is one)")
    add_untextured(parser)
    parser.add_argument("--json", action="store_true", help="print what fit.json says")
    parser.add_argument("--quiet", action="store_true", help="no progress bars")


def run(args: argparse.Namespace) -> int:
    import json

    from aquamam.fit.pipeline import Fit
    from aquamam.training.distributed import usable

    config = config_of(args)
    out = args.out or Path(Path(args.part).stem)

    def say(line: str) -> None:
        print(line, file=sys.stderr if args.json else sys.stdout, flush=True)

    if args.device is not None:
        usable(args.device)
    fit = Fit(args.part, out, config, say=say, quiet=args.quiet, device=args.device, untextured=args.untextured)
    facts = fit.run()
    if args.json:
        print(json.dumps(facts))
    else:
        print("\n".join(lines_of(facts, out)))
    return 0


def config_of(args: argparse.Namespace) -> "FitConfig":
    """The fit that the arguments ask for."""
    from dataclasses import replace

    from aquamam.cli.train import apply, overrides, parse_time
    from aquamam.errors import InputError
    from aquamam.fit.pipeline import TRAINING_SHARE, FitConfig, settings_for
    from aquamam.network.model import ModelConfig
    from aquamam.training.presets import preset

    chosen = preset(args.preset)
    if not isinstance(chosen.model, ModelConfig) or chosen.model.embedding == "category":
        raise InputError(f"a fit needs an AQuaMaM that reads images, {args.preset!r} is none; try die-small.")
    budget = parse_time(args.time_budget)
    if args.steps is not None and args.steps < 1:
        raise InputError(f"--steps must be at least 1, got {args.steps}.")
    values = overrides(args.set)
    known = {*chosen.model.__dataclass_fields__, *chosen.train.__dataclass_fields__}
    for name in values:
        if name not in known:
            raise InputError(f"neither the model's nor the training's config has a field {name!r}; see aquamam info.")
    ours: dict[str, Any] = {
        "time_budget": 0.0 if args.steps else round(TRAINING_SHARE * budget, 3),
        "steps": args.steps or chosen.train.steps,
        "seed": args.seed,
        "augment": "none",  # the renders are varied themselves, held-out ones too
        "validate_every": 100 if budget < 900 else 250,
        "validation_size": 500,
        "checkpoint_seconds": 30.0,
    }
    sizes = settings_for(budget)
    held_out = sizes["held_out"] if args.held_out is None else args.held_out
    return FitConfig(
        model=apply(replace(chosen.model, image_size=_size(args.size, chosen.model)), values),
        train=apply(replace(chosen.train, schedule="cosine", **ours), values),
        plain=args.plain,
        held_out=held_out,
        groups=min(max(held_out // 300, 1), 6),
        views=sizes["views"] if args.views is None else args.views,
        tolerance=args.tolerance,
    )


def _size(size: int, model: Any) -> int:
    """The size, checked before `image_size` is, in this command's own words."""
    from aquamam.errors import InputError

    step = model.patch_size if model.embedding == "patches" else 2 ** len(model.stem)
    if size < step or size % step:
        raise InputError(
            f"--size must be a multiple of {step}, got {size}; try {max(step, round(size / step) * step)}."
        )
    return size


def lines_of(facts: dict[str, Any], out: Path) -> list[str]:
    """The judgement for people."""
    figures = facts["evaluation"]
    ceiling = f", ceiling {figures['ceiling']:.2f}" if figures["ceiling"] is not None else ""
    lines = [
        "",
        f"log-likelihood {figures['mean_log_likelihood']:.3f} ± {figures['log_likelihood_se']:.3f} (uniform -2.29{ceiling}), error median "
        f"{figures['median_error_deg']:.2f}°, mean {figures['mean_error_deg']:.2f}°, within 15° {100 * figures['acc15']:.1f} %, spread "
        f"{figures['spread_deg']:.2f}°",
        "",
        f"{'views that fit':24} images  mean LL  median error  {'50 % set':>13}  {'90 % set':>13}  {'95 % set':>13}",
    ]
    for row in facts["classes"]:
        cover = [
            f"{100 * one['share']:5.1f} ± {100 * one['se']:3.1f}{' ' if one['within_two_se'] else '!'}"
            for one in row["coverage"].values()
        ]
        lines.append(
            f"{row['words']:24} {row['images']:6,} {row['mean_log_likelihood']:8.2f} {row['median_error_deg']:12.2f}°  "
            + "  ".join(f"{text:>13}" for text in cover)
        )
    if any(not one["within_two_se"] for row in facts["classes"] for one in row["coverage"].values()):
        lines.append("! more than two standard errors from what the set promises")
    name = f"{out}/"
    return [*lines, "", f"the page is {out / 'index.html'}; try: aquamam predict photo.png --model {name}"]
