"""`aquamam info`: what a preset or a checkpoint is."""

import argparse
from typing import Any

HELP = "Print parameters, bins, chart, density and ceiling of a preset or checkpoint."
EXAMPLES = """  aquamam info toy
  aquamam info runs/die/best.safetensors --json
"""


WIDEST = 140  # characters of a value; --json has all of it


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", help="a preset (toy, die, ...), a bundled model's name, or a checkpoint's path")
    parser.add_argument(
        "--checkpoint", action="store_true", help="take NAME as a bundled model where a preset has the same name"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def describe(name: str, checkpoint: bool = False) -> dict:
    """Facts about a preset, a bundled model or a checkpoint; a preset goes first unless told otherwise."""
    import torch

    from aquamam.checkpoints.checkpoint import build, load
    from aquamam.training.presets import PRESETS

    from_preset = name in PRESETS and not checkpoint
    if from_preset:
        with torch.device("meta"):  # counting needs no memory
            model: torch.nn.Module = build(PRESETS[name].kind, PRESETS[name].model.to_dict())
    else:
        model = load(name)
    facts: dict[str, Any] = {"name": name, "source": "preset" if from_preset else "checkpoint", "kind": model.kind}
    facts["parameters"] = sum(p.numel() for p in model.parameters())
    facts.update(model.config.to_dict())  # type: ignore[union-attr,operator]
    if hasattr(model, "cells"):
        facts["ceiling"] = round(model.cells.ceiling, 4)  # type: ignore[union-attr,arg-type]
        facts["measure"] = "pi^2"
    facts["info"] = getattr(model, "info", {})
    return facts


def run(args: argparse.Namespace) -> int:
    import json

    facts = describe(args.model, args.checkpoint)
    if args.json:
        print(json.dumps(facts))
        return 0
    info = facts.pop("info")
    if isinstance(info, dict) and isinstance(info.get("calibration"), dict):  # thousands of scores
        info = {**info, "calibration": f"on {info['calibration'].get('images', 'some')} held-out images"}
    for key, value in {**facts, **(info if isinstance(info, dict) else {})}.items():
        if key == "ceiling":
            value = f"{value:.2f}  (largest log density at the identity, volume pi^2)"
        parts = {f"{key}.{name}": part for name, part in value.items()} if isinstance(value, dict) else {key: value}
        for name, part in parts.items():
            text = f"{part:,}" if isinstance(part, int) and not isinstance(part, bool) else str(part)
            print(f"{name:14} {text if len(text) <= WIDEST else text[: WIDEST - 4] + ' ...'}")
    return 0
