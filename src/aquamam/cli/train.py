"""Train a preset on a data set, or on renders made while training; stopped, it goes on from the last checkpoint."""

import argparse
from typing import Any

from aquamam.cli.options import add, existing_data, rendered_objects, with_settings
from aquamam.errors import InputError

EXAMPLES = """\
  aquamam train die-small --data data/die --out runs/die --time-budget 45m
  aquamam train die-small --data render:die --out runs/die --steps 30000
  aquamam train cylinder-small --data render:cylinder --out runs/cyl --set labels_per_image=8 --set dim=128
  torchrun --nproc-per-node 8 -m aquamam train die --data data/die224 --out runs/paper
"""

CHANGEABLE = ("by_volume", "dropout", "sharpness")  # fields of a model that may change when its training goes on


def add_arguments(parser: argparse.ArgumentParser) -> None:
    presets = "toy, die, cylinder (the paper's), die-small, cylinder-small, symsol-small, ..."
    parser.add_argument("preset", help=presets)
    add(parser, "--data", required=True)
    lights = "other lights, backgrounds, framing, blur and noise: in none, a quarter (robust) or all renders (camera)"
    parser.add_argument("--vary", choices=["none", "robust", "camera"], default="none", help=lights)
    parser.add_argument("--out", metavar="DIR", help="the run's folder (default: runs/PRESET)")
    add(parser, "--steps", help="length of the schedule", default=None)
    add(parser, "--time-budget", help="fit the schedule to wall-clock time: 45m, 2h, 90s")
    parser.add_argument("--from", dest="start", metavar="MODEL", help="start from the weights of this model")
    add(parser, "--set", help="override a field of the model's or the training's config, or of the variation")
    add(parser, "--seed", help="of initial weights, order of the data and noise", default=None)
    add(parser, "--device", "--quiet")


def run(args: argparse.Namespace) -> None:
    from aquamam.checkpoints.checkpoint import load
    from aquamam.data.renders import VARIATIONS
    from aquamam.training.distributed import process_group
    from aquamam.training.presets import preset
    from aquamam.training.trainer import Trainer

    chosen, variation = preset(args.preset), VARIATIONS[args.vary]
    start = load(args.start) if args.start else None
    base: Any = chosen.model if start is None else start.config
    values = settings(args, base, chosen.train, variation)
    model_config, train_config = with_settings(base, values), with_settings(chosen.train, values)
    for name in values if start is not None else ():
        if name not in CHANGEABLE and getattr(model_config, name, None) != (kept := getattr(base, name, None)):
            hint = f"drop --set {name}, or train afresh without --from"
            raise InputError(f"--from keeps the model as it is, with {name}={kept!r}; {hint}.")
    with process_group(args.device) as device:
        data = open_data(args.data, model_config.image_size, train_config, with_settings(variation, values))
        out = args.out or f"runs/{args.preset}"
        kind = chosen.kind if start is None else start.kind
        options: dict[str, Any] = {"start_from": start, "device": device, "quiet": args.quiet}
        trainer = Trainer(kind, model_config.to_dict(), train_config, *data, out, **options)
        progress = trainer.fit()
        if trainer.rank == 0:
            print(f"{progress.step:,} steps, {progress.images:,} images, {progress.elapsed / 60:.1f} minutes")
            print(f"best validation log-likelihood {progress.best:.3f} (volume pi^2) in {out}/best.safetensors")
            if progress.skipped:
                print(f"skipped {progress.skipped} unreadable images, last {progress.skipped_names[-1]}")


def settings(args: argparse.Namespace, model: Any, train: Any, variation: Any) -> dict[str, Any]:
    """Fields of any of the configs that the arguments set."""
    values = dict(args.set)
    known = [model, train, *([variation] if args.vary != "none" else [])]
    if unknown := [name for name in values if not any(name in config.__dataclass_fields__ for config in known)]:
        hint = f"see aquamam info {args.preset}"
        if unknown[0] in variation.__dataclass_fields__:
            hint = "it is one of the variation of renders, so give --vary robust or --vary camera with it"
        raise InputError(f"neither the model's nor the training's config has a field {unknown[0]!r}; {hint}.")
    given = {name: getattr(args, name) for name in ("steps", "seed", "time_budget") if getattr(args, name) is not None}
    if twice := sorted(given.keys() & values.keys()):
        raise InputError(f"{twice[0]} is given by an option and by --set; drop one of them.")
    values |= given
    if "steps" in values and values.get("time_budget"):
        raise InputError("a training ends by its steps or by the clock; give --steps or --time-budget, not both.")
    return values


def open_data(source: str, size: int, config: Any, variation: Any = None) -> tuple[Any, Any]:
    """Training and validation data from a folder, or rendered on the fly from render:NAME[,NAME...], perhaps varied."""
    from aquamam.data import RenderedDataset, open_dataset
    from aquamam.data.renders import PLAIN, VariedDataset
    from aquamam.rendering.render import RenderSettings
    from aquamam.rendering.solids import mesh_of

    varied = variation not in (None, PLAIN)
    if not source.startswith("render:"):
        if varied:
            hint = "try --set augment=mild"
            raise InputError(f"--vary changes renders, and a data set has been rendered already; {hint}.")
        folder = existing_data(source)
        return open_dataset(folder, split="train", size=size), open_dataset(folder, split="valid", size=size)
    objects, drawing = rendered_objects(source), RenderSettings(size=size)
    if varied and len(objects) > 1:
        raise InputError(f"--vary takes one object, got {len(objects)}; try --set augment=mild for several.")
    options: dict[str, Any] = {"seed": config.seed, "lookalikes": config.labels_per_image > 1}
    if varied:
        group = getattr(objects[0], "symmetry", None)
        train: Any = VariedDataset(mesh_of(objects[0]), drawing, variation, symmetry=group, **options)
    else:
        train = RenderedDataset(objects, drawing, split="train", **options)
    return train, RenderedDataset(objects, drawing, seed=config.seed, split="valid", length=config.validation_size)
