"""Print parameters, bins, chart, density and ceiling of a preset or checkpoint.

aquamam info toy
aquamam info runs/die/best.safetensors --json
"""

import argparse
import json
from typing import Any

from aquamam.cli.main import add

WIDEST = 140  # characters of a value; --json has all of it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a preset (toy, die, ...), a bundled model's name, or a checkpoint's path"
    parser.add_argument("model", metavar="MODEL", help=what)
    same = "take NAME as a bundled model where a preset has the same name"
    parser.add_argument("--checkpoint", action="store_true", help=same)
    add(parser, "--json")


def run(args: argparse.Namespace) -> None:
    import torch

    from aquamam.checkpoints.checkpoint import build, load
    from aquamam.training.presets import PRESETS

    preset = None if args.checkpoint else PRESETS.get(args.model)
    with torch.device("meta" if preset else "cpu"):  # counting needs no memory
        model: Any = build(preset.kind, preset.model.to_dict()) if preset else load(args.model)
    facts = {"name": args.model, "source": "preset" if preset else "checkpoint", "kind": model.kind}
    facts |= {"parameters": sum(p.numel() for p in model.parameters()), **model.config.to_dict()}
    if hasattr(model, "cells"):
        facts |= {"ceiling": round(model.cells.ceiling, 4), "measure": "pi^2"}
    info = getattr(model, "info", {})
    if args.json:
        print(json.dumps({**facts, "info": info}))
        return
    if "ceiling" in facts:
        facts["ceiling"] = f"{facts['ceiling']:.2f}  (largest log density at the identity, volume pi^2)"
    for key, value in {**facts, **info}.items():
        parts = {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
        for name, part in parts.items():
            text = f"{part:,}" if isinstance(part, int) and not isinstance(part, bool) else str(part)
            print(f"{name:14} {text if len(text) <= WIDEST else text[: WIDEST - 4] + ' ...'}")
