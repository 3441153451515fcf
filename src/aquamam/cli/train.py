"""`aquamam train`: from a data set to a model."""

import argparse
from typing import Any

from aquamam.cli.options import seed

HELP = "Train a preset on a data set, or on renders made while training; stopped, it goes on from the last checkpoint."
EXAMPLES = """  aquamam train die-small --data data/die --out runs/die --time-budget 45m
  aquamam train die-small --data render:die --out runs/die --steps 30000
  aquamam train cylinder-small --data render:cylinder --out runs/cyl --set labels_per_image=8 --set dim=128
  torchrun --nproc-per-node 8 -m aquamam train die --data data/die224 --out runs/paper
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("preset", help="toy, die, cylinder (the paper's), die-small, cylinder-small, symsol-small, ...")
    parser.add_argument(
        "--data",
        required=True,
        metavar="DIR",
        help="a data set's folder, or render:NAME for a solid or mesh file rendered on the fly",
    )
    parser.add_argument(
        "--vary", choices=["none", "robust", "camera"], default="none",
        help="other lights, backgrounds, framing, blur and noise in renders: in none, in a quarter, or in all of them",
    )  # fmt: skip
    parser.add_argument("--out", metavar="DIR", help="the run's folder (default runs/PRESET)")
    parser.add_argument("--steps", type=int, help="length of the schedule")
    parser.add_argument("--time-budget", metavar="TIME", help="fit the schedule to wall-clock time: 45m, 2h, 90s")
    parser.add_argument("--from", dest="start", metavar="CHECKPOINT", help="start from the weights of this model")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="override any field of the model's or the training's config, or of the variation",
    )
    parser.add_argument("--seed", type=seed, help="of initial weights, order of the data and noise")
    parser.add_argument("--device", help="cpu, cuda, cuda:1, ... (default: a GPU if there is one)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")


def parse_time(text: str) -> float:
    """Seconds of "45m", "2h", "90s" or "90"."""
    from aquamam.errors import InputError

    units = {"s": 1, "m": 60, "h": 3600, "d": 86400}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < 1e9:
        raise InputError(f"a time is a positive number with s, m, h or d, got {text!r}; try 45m.")
    return seconds


# fields of a model that may change when its training goes on
CHANGEABLE = ("by_volume", "contrast", "dropout", "sharpness", "spill")


def overrides(settings: list[str]) -> dict[str, Any]:
    """FIELD=VALUE pairs, values as JSON where they parse as JSON."""
    import json

    from aquamam.errors import InputError

    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, text = setting.partition("=")
        if not equals or not name:
            raise InputError(f"--set takes FIELD=VALUE, got {setting!r}; try --set lr=0.001.")
        try:
            values[name] = json.loads(text)
        except json.JSONDecodeError:
            values[name] = text
    return values


def apply(config: Any, values: dict[str, Any]) -> Any:
    """A copy of a frozen config with those of its fields that are in `values`, types checked against the present ones."""
    from dataclasses import replace

    from aquamam.errors import InputError

    changes = {}
    for name, value in values.items():
        if name not in config.__dataclass_fields__:
            continue
        now = getattr(config, name)
        if isinstance(now, float) and isinstance(value, int) and not isinstance(value, bool):
            value = float(value)
        if isinstance(now, tuple) and isinstance(value, list):
            value = tuple(value)
        if type(value) is not type(now):
            raise InputError(f"{name} must be {type(now).__name__} like its default {now!r}, got {value!r}.")
        changes[name] = value
    return replace(config, **changes)


def run(args: argparse.Namespace) -> int:
    from aquamam.checkpoints.checkpoint import load
    from aquamam.data.renders import VARIATIONS
    from aquamam.errors import InputError
    from aquamam.training.distributed import process_group
    from aquamam.training.presets import preset
    from aquamam.training.trainer import Trainer

    chosen = preset(args.preset)
    values = overrides(args.set)
    variation = VARIATIONS[args.vary]
    start = load(args.start) if args.start else None
    model_base: Any = chosen.model if start is None else start.config
    known = [model_base, chosen.train, *([variation] if args.vary != "none" else [])]
    unknown = [n for n in values if not any(n in config.__dataclass_fields__ for config in known)]
    if unknown:
        hint = f"see aquamam info {args.preset}"
        if unknown[0] in variation.__dataclass_fields__:
            hint = "it is one of the variation of renders, so give --vary robust or --vary camera with it"
        raise InputError(f"neither the model's nor the training's config has a field {unknown[0]!r}; {hint}.")
    given = {name: getattr(args, name) for name in ("steps", "seed") if getattr(args, name) is not None}
    if args.time_budget is not None:
        given["time_budget"] = parse_time(args.time_budget)
    if twice := sorted(given.keys() & values.keys()):
        raise InputError(f"{twice[0]} is given by an option and by --set; drop one of them.")
    values |= given
    if "steps" in values and values.get("time_budget"):
        raise InputError("a training ends by its steps or by the clock; give --steps or --time-budget, not both.")
    model_config = apply(model_base, values)
    if start is not None:
        for name in values:
            fixed = name in model_base.__dataclass_fields__ and name not in CHANGEABLE
            if fixed and getattr(model_config, name) != getattr(model_base, name):
                raise InputError(
                    f"--from keeps the model as it is, with {name}={getattr(model_base, name)!r}; drop --set {name}, or train afresh without --from."
                )
    train_config = apply(chosen.train, values)
    with process_group(args.device) as device:
        train, valid = open_data(args.data, model_config.image_size, train_config, apply(variation, values))
        out = args.out or f"runs/{args.preset}"
        kind = start.kind if start is not None else chosen.kind
        trainer = Trainer(
            kind, model_config.to_dict(), train_config, train, valid, out,  # type: ignore[union-attr,operator,arg-type]
            start_from=start, device=device, quiet=args.quiet,
        )  # fmt: skip
        progress = trainer.fit()
        if trainer.rank == 0:
            print(f"{progress.step:,} steps, {progress.images:,} images, {progress.elapsed / 60:.1f} minutes")
            print(f"best validation log-likelihood {progress.best:.3f} (volume pi^2) in {out}/best.safetensors")
            if progress.skipped:
                print(f"skipped {progress.skipped} unreadable images, last {progress.skipped_names[-1]}")
    return 0


def open_data(source: str, size: int, config: Any, variation: Any = None) -> tuple[Any, Any]:
    """Training and validation data from a folder, or rendered on the fly from render:NAME[,NAME...], perhaps varied."""
    from pathlib import Path

    from aquamam.data import RenderedDataset, open_dataset
    from aquamam.data.renders import PLAIN
    from aquamam.errors import InputError
    from aquamam.rendering.render import RenderSettings

    if source.startswith("render:"):
        from aquamam.rendering.solids import open_object

        names = [n for n in source.removeprefix("render:").split(",") if n]
        if not names:
            raise InputError("render: needs a solid or a mesh file; try --data render:die.")
        objects = [open_object(n) for n in names]
        settings = RenderSettings(size=size)
        lookalikes = config.labels_per_image > 1
        if variation not in (None, PLAIN):
            train = _varied(objects, settings, variation, config.seed, lookalikes)
        else:
            train = RenderedDataset(objects, settings, seed=config.seed, split="train", lookalikes=lookalikes)
        valid = RenderedDataset(objects, settings, seed=config.seed, split="valid", length=config.validation_size)
        return train, valid
    if variation not in (None, PLAIN):
        raise InputError("--vary changes renders, and a data set has been rendered already; try --set augment=mild.")
    if not Path(source).exists():
        raise InputError(f"there is no data set at {source!r}; make one with aquamam render, or use --data render:die.")
    return open_dataset(source, split="train", size=size), open_dataset(source, split="valid", size=size)


def _varied(objects: list[Any], settings: Any, variation: Any, seed: int, lookalikes: bool) -> Any:
    from aquamam.data.renders import VariedDataset
    from aquamam.errors import InputError
    from aquamam.rendering.solids import Solid

    if len(objects) > 1:
        raise InputError(f"--vary takes one object, got {len(objects)}; try --set augment=mild for several.")
    mesh, group = (objects[0].mesh, objects[0].symmetry) if isinstance(objects[0], Solid) else (objects[0], None)
    return VariedDataset(mesh, settings, variation, symmetry=group, seed=seed, lookalikes=lookalikes)
