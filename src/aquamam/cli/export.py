"""Write a checkpoint as ONNX: NAME.encoder.onnx, NAME.decoder.onnx, and NAME.json, which says what the tensors mean.

aquamam export die model.onnx
aquamam export die small.onnx --int8                 an encoder in 8 bits, and what that costs on fresh renders
aquamam export runs/die/best.safetensors robots/die.onnx
aquamam serve robots/die.onnx
"""

import argparse
from typing import Any

from aquamam.cli.main import SHARED
from aquamam.errors import InputError

TYPICAL, JUDGED = 256, 512  # renders that tell the ranges of 8-bit numbers, and others that tell what they cost
MOST = 0.05  # nats that 8 bits may cost in the mean


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=SHARED["--model"]["help"])
    parser.add_argument("out", metavar="NAME.onnx", help="where to write; the three files share this name's beginning")
    parser.add_argument("--int8", action="store_true", help="encode in 8 bits: smaller, faster, a little less sharp")
    parser.add_argument("--unchecked", action="store_true", help="do not run the graphs against the checkpoint")


def run(args: argparse.Namespace) -> None:
    from aquamam.checkpoints.checkpoint import load
    from aquamam.cli.evaluate import rendered
    from aquamam.export.onnx import difference, export, largest_difference
    from aquamam.export.runner import Files

    Files.at(args.out)  # a wrong name is told before the model is read
    model: Any = load(args.model)
    typical = held_out = None
    if args.int8:
        renders, _ = rendered(model, None, TYPICAL + JUDGED, 0)
        typical, held_out = renders.batch(range(TYPICAL)).images, renders.batch(range(TYPICAL, TYPICAL + JUDGED))
    for file in export(model, args.out, int8=typical):
        print(f"{file}  {file.stat().st_size / 1e6:,.2f} MB")
    if args.unchecked:
        return
    if held_out is None:
        largest = largest_difference(model, args.out)
        if not largest < 1e-3:
            off = f"log densities differ by {largest:.2g}"
            raise InputError(f"the graphs must agree with the checkpoint, and {off}; try another onnxruntime.")
        print(f"log densities agree with the checkpoint's to {largest:.1g}")
        return
    change = difference(model, args.out, held_out.images, held_out.rotations[:, 0])
    told = f"the mean log density of {JUDGED} fresh renders by {change.mean():+.3f}"
    if not change.mean() > -MOST:
        raise InputError(f"8 bits may cost {MOST} nats, and they change {told}; export again without --int8.")
    print(f"8 bits change {told}, that of one render by {change.abs().mean():.2f} up or down")
