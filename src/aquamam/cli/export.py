"""Write a checkpoint as ONNX: NAME.encoder.onnx, NAME.decoder.onnx, and NAME.json, which says what the tensors mean.

aquamam export die model.onnx
aquamam export runs/die/best.safetensors robots/die.onnx
aquamam serve robots/die.onnx
"""

import argparse

from aquamam.cli.main import SHARED
from aquamam.errors import InputError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="MODEL", help=SHARED["--model"]["help"])
    parser.add_argument("out", metavar="NAME.onnx", help="where to write; the three files share this name's beginning")
    parser.add_argument("--unchecked", action="store_true", help="do not run the graphs against the checkpoint")


def run(args: argparse.Namespace) -> None:
    from aquamam.checkpoints.checkpoint import load
    from aquamam.export.onnx import export, largest_difference
    from aquamam.export.runner import Files

    Files.at(args.out)  # a wrong name is told before the model is read
    model = load(args.model)
    for file in export(model, args.out):
        print(f"{file}  {file.stat().st_size / 1e6:,.2f} MB")
    if not args.unchecked:
        difference = largest_difference(model, args.out)  # type: ignore[arg-type]  # export takes no other
        if not difference < 1e-3:
            off = f"log densities differ by {difference:.2g}"
            raise InputError(f"the graphs must agree with the checkpoint, and {off}; try another onnxruntime.")
        print(f"log densities agree with the checkpoint's to {difference:.1g}")
