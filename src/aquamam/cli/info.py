"""Print parameters, bins, chart, density and ceiling of a preset or checkpoint."""

import argparse
import json
from typing import Any

from aquamam.cli.options import add

EXAMPLES = """\
  aquamam info toy
  aquamam info runs/die/best.safetensors --json
"""

WIDEST = 140  # characters of a value; --json has all of it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a preset (toy, die, ...), a bundled model's name, or a checkpoint's path"
    parser.add_argument("model", metavar="MODEL", help=what)
    same = "take NAME as a bundled model where a preset has the same name"
    parser.add_argument("--checkpoint", action="store_true", help=same)
    add(parser, "--json")


def describe(name: str, checkpoint: bool = False) -> dict[str, Any]:
    """Facts about a preset, a bundled model or a checkpoint; a preset goes first unless told otherwise."""
    import torch

    from aquamam.checkpoints.checkpoint import build, load
    from aquamam.training.presets import PRESETS

    from_preset = name in PRESETS and not checkpoint
    if from_preset:
        with torch.device("meta"):  # counting needs no memory
            model: Any = build(PRESETS[name].kind, PRESETS[name].model.to_dict())
    else:
        model = load(name)
    facts: dict[str, Any] = {"name": name, "source": "preset" if from_preset else "checkpoint", "kind": model.kind}
    facts["parameters"] = sum(p.numel() for p in model.parameters())
    facts |= model.config.to_dict()
    if hasattr(model, "cells"):
        facts |= {"ceiling": round(model.cells.ceiling, 4), "measure": "pi^2"}
    return {**facts, "info": getattr(model, "info", {})}


def run(args: argparse.Namespace) -> None:
    facts = describe(args.model, args.checkpoint)
    if args.json:
        print(json.dumps(facts))
        return
    info = facts.pop("info")
    if "ceiling" in facts:
        facts["ceiling"] = f"{facts['ceiling']:.2f}  (largest log density at the identity, volume pi^2)"
    if isinstance(info.get("calibration"), dict):  # thousands of scores
        info = {**info, "calibration": f"on {info['calibration'].get('images', 'some')} held-out images"}
    for key, value in {**facts, **info}.items():
        parts = {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
        for name, part in parts.items():
            text = f"{part:,}" if isinstance(part, int) and not isinstance(part, bool) else str(part)
            print(f"{name:14} {text if len(text) <= WIDEST else text[: WIDEST - 4] + ' ...'}")
