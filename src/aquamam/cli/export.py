"""`aquamam export`: a checkpoint as ONNX graphs."""

import argparse

HELP = (
    "Write a checkpoint as ONNX: NAME.encoder.onnx, NAME.decoder.onnx, and NAME.json, which says what the tensors mean."
)
EXAMPLES = """  aquamam export die model.onnx
  aquamam export runs/die/best.safetensors robots/die.onnx
  aquamam serve robots/die.onnx
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", metavar="CHECKPOINT", help="a bundled model's name or a checkpoint's path")
    parser.add_argument("out", metavar="NAME.onnx", help="where to write; the three files share this name's beginning")
    parser.add_argument("--unchecked", action="store_true", help="do not run the graphs against the checkpoint")


def run(args: argparse.Namespace) -> int:
    from aquamam.checkpoints.checkpoint import load
    from aquamam.errors import InputError
    from aquamam.export.onnx import export, largest_difference
    from aquamam.export.runner import Files
    from aquamam.network.model import AQuaMaM

    Files.at(args.out)  # a wrong name is told before the model is read
    model = load(args.model)
    files = export(model, args.out)
    for file in files:
        print(f"{file}  {file.stat().st_size / 1e6:,.2f} MB")
    if not args.unchecked:
        assert isinstance(model, AQuaMaM)  # export takes no other
        difference = largest_difference(model, args.out)
        if not difference < 1e-3:
            raise InputError(
                f"the graphs must agree with the checkpoint, and log densities differ by {difference:.2g}; try another onnxruntime."
            )
        print(f"log densities agree with the checkpoint's to {difference:.1g}")
    return 0
