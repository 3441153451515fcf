"""Train a preset on a data set, or on renders made while training; stopped, it goes on from the last checkpoint.

aquamam train die-small --data data/die --out runs/die --time-budget 45m
aquamam train die-small --data render:die --out runs/die --steps 30000
aquamam train cylinder-small --data render:cylinder --out runs/cyl --set labels_per_image=8 --set dim=128
torchrun --nproc-per-node 8 -m aquamam train die --data data/die224 --out runs/paper
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

from aquamam.cli.main import add, given, rendered_objects, with_settings
from aquamam.errors import InputError, require

CHANGEABLE = ("by_volume", "dropout")  # fields of a model that may change when its training goes on


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("preset", help="toy, die, cylinder (the paper's), die-small, cylinder-small, symsol-small, ...")
    add(parser, "--data", required=True)
    photo = "plain renders, or pictures as cameras take them and detectors cut them, which teach poses, too"
    option("--vary", choices=["none", "photo"], default="none", help=photo)
    add(parser, "--backgrounds")
    option("--out", metavar="DIR", help="the run's folder (default: runs/PRESET)")
    add(parser, "--steps", help="length of the schedule")
    add(parser, "--time-budget", help="fit the schedule to wall-clock time: 45m, 2h, 90s")
    option("--from", dest="start", metavar="MODEL", help="start from the weights of this model")
    add(parser, "--set")
    add(parser, "--seed", help="of initial weights, order of the data and noise", default=None)
    add(parser, "--device", "--quiet")


def run(args: argparse.Namespace) -> None:
    from aquamam.checkpoints.checkpoint import load
    from aquamam.training.distributed import process_group
    from aquamam.training.presets import preset
    from aquamam.training.trainer import Trainer

    chosen, start = preset(args.preset), load(args.start) if args.start else None
    kind, base = (chosen.kind, chosen.model) if start is None else (start.kind, start.config)
    if start is None and args.vary == "photo" and kind == "aquamam":
        base = replace(base, pose=True)
    by_option, by_set = given(args, "steps", "seed", "time_budget"), dict(args.set)
    values = by_set | by_option
    if twice := sorted(by_option.keys() & by_set.keys()):
        raise InputError(f"{twice[0]} is given by an option and by --set; drop one of them.")
    if "steps" in values and values.get("time_budget"):
        raise InputError("a training ends by its steps or by the clock; give --steps or --time-budget, not both.")
    model_config, train_config = with_settings(values, base, chosen.train)
    for name in values if start is not None else ():
        if name not in CHANGEABLE and getattr(model_config, name, None) != (kept := getattr(base, name, None)):
            hint = f"drop --set {name}, or train afresh without --from"
            raise InputError(f"--from keeps the model as it is, with {name}={kept!r}; {hint}.")
    with process_group(args.device) as device:
        data, out = open_data(args, model_config.image_size, train_config, start), args.out or f"runs/{args.preset}"
        setup: dict[str, Any] = {"start_from": start, "device": device, "quiet": args.quiet}
        trainer = Trainer(kind, model_config.to_dict(), train_config, *data, out, **setup)
        progress = trainer.fit()
        if trainer.rank == 0:
            print(f"{progress.step:,} steps, {progress.images:,} images, {progress.elapsed / 60:.1f} minutes")
            print(f"best validation log-likelihood {progress.best:.3f} (volume pi^2) in {out}/best.safetensors")
            if progress.skipped:
                print(f"skipped {progress.skipped} unreadable images, last {progress.skipped_names[-1]}")


def open_data(args: argparse.Namespace, size: int, config: Any, start: Any) -> tuple[Any, Any]:
    """Training and validation data from a folder, or rendered on the fly from render:NAME[,NAME...]."""
    from aquamam.data import PhotoDataset, RenderedDataset, open_dataset
    from aquamam.data.open import recognise
    from aquamam.network.poses import part_of
    from aquamam.rendering.render import RenderSettings

    photo = args.vary == "photo"
    told = "--backgrounds are those of photograph-like renders; add --vary photo."
    require(photo or args.backgrounds is None, told)
    if not args.data.startswith("render:"):
        require(not photo, "--vary changes renders, and a data set is rendered already; try --set augment=mild.")
        part = part_of(start)
        known: dict[str, Any] = {"part": part} if part is not None and recognise(Path(args.data)).kind == "bop" else {}
        train, valid = (open_dataset(args.data, split, size=size, **known) for split in ("train", "valid"))
        return train, valid

    def data(split: str, **options: Any) -> Any:
        objects, options = rendered_objects(args.data), {"split": split, "seed": config.seed, **options}
        if photo:
            return PhotoDataset(objects, size, backgrounds=args.backgrounds, **options)
        return RenderedDataset(objects, RenderSettings(size=size), **options)

    return data("train", lookalikes=config.labels_per_image > 1), data("valid", length=config.validation_size)
