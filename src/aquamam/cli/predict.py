"""`aquamam predict`: the rotation that an image shows, how sure that is, and what else fits."""

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from aquamam.cli.options import seed

HELP = "predict rotations from images, and say how sure they are"
EXAMPLES = """\
  aquamam predict die.png                              one line: rotation, log density, certainty
  aquamam predict photos/ --csv > rotations.csv        a whole folder
  aquamam predict part.jpg --model runs/part --json --matrix
  aquamam predict photos/ --samples 0 --csv            faster: rotations and log densities only
Quaternions are xyzw and take the object to the camera (x right, y up, z towards the viewer)."""

BATCH = 32  # images at once where nothing is drawn at random
COLUMNS = ("qx", "qy", "qz", "qw", "rx", "ry", "rz")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files, or folders of them")
    add_model_arguments(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print a JSON list, one object an image")
    form.add_argument("--csv", action="store_true", help="print CSV, one row an image")
    parser.add_argument("--matrix", action="store_true", help="also give rotation matrices (with --json or --csv)")
    parser.add_argument(
        "--samples", type=int, default=1000, metavar="N",
        help="drawn for shares and modes (default: 1000); 0 gives rotations and log densities only",
    )  # fmt: skip
    parser.add_argument(
        "--strategy", choices=["greedy", "beam", "expected"], default="greedy",
        help="greedy (the paper's, default), beam (the best of 16), or expected (least expected error of samples)",
    )  # fmt: skip
    parser.add_argument("--seed", type=seed, default=0, help="of the samples (default: 0)")


def add_model_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model", default="die", metavar="NAME", help="a bundled model's name or a checkpoint's path (default: die)"
    )
    parser.add_argument("--device", help="cpu, cuda, ... (default: a GPU if there is one)")


def load_model(args: argparse.Namespace) -> Any:
    """The model that the arguments name, on their device."""
    return load_on(args.model, args.device)


def load_on(source: str, device: str | None) -> Any:
    """A model on a device, or on the best there is."""
    import torch

    from aquamam.checkpoints.checkpoint import load
    from aquamam.training.distributed import usable

    return load(source, device=usable(device or ("cuda" if torch.cuda.is_available() else "cpu")))


def run(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from aquamam.errors import InputError
    from aquamam.network.images import find_images, read_image

    if args.samples and args.samples < 16:
        raise InputError(f"--samples must be 0 or at least 16, got {args.samples}; 1000 is the default.")
    if args.matrix and not (args.json or args.csv):
        raise InputError("--matrix needs --json or --csv; a table has no room for matrices.")
    paths = find_images(args.images)
    model = load_model(args)
    printer: Printer = JsonPrinter() if args.json else CsvPrinter() if args.csv else TablePrinter(paths)
    failed = 0
    # Samples of an image must not depend on the images beside it, so with samples images go one by one; drawing takes longest anyway.
    step = 1 if args.samples else BATCH
    with tqdm(total=len(paths), unit="img", disable=None if len(paths) > 1 else True, leave=False) as bar:
        for start in range(0, len(paths), step):
            good, pictures = [], []
            for path in paths[start : start + step]:
                try:
                    pictures.append(read_image(path))
                    good.append(path)
                except InputError as error:
                    failed += 1
                    tqdm.write(f"aquamam: {error}", file=sys.stderr)
            if pictures:
                for path, record in zip(good, predict(model, pictures, args)):
                    printer.add({"image": str(path), **record}, bar)
            bar.update(len(paths[start : start + step]))
    printer.close()
    return 2 if failed else 0


def predict(model: Any, pictures: list, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One record an image."""
    import torch

    from aquamam.posterior.answers import answers, plain_answers

    with torch.inference_mode():
        posterior = model(pictures)
        generator = torch.Generator(device=next(model.parameters()).device).manual_seed(args.seed)
        if args.samples:
            found = answers(
                posterior, args.samples, strategy=args.strategy, symmetry=model.symmetry, generator=generator
            )
        else:
            found = plain_answers(posterior, strategy=args.strategy, generator=generator)
    return [answer.to_dict(matrix=args.matrix) for answer in found]


class Printer:
    """Where records go."""

    def add(self, values: dict[str, Any], bar: Any) -> None:
        raise NotImplementedError(f"{type(self).__name__} must define add.")

    def close(self) -> None:
        """After the last record."""


class JsonPrinter(Printer):
    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def add(self, values: dict[str, Any], bar: Any) -> None:
        self.records.append(values)

    def close(self) -> None:
        print(json.dumps(self.records, indent=1 if sys.stdout.isatty() else None))


class CsvPrinter(Printer):
    def __init__(self) -> None:
        self.header: list[str] = []

    def add(self, values: dict[str, Any], bar: Any) -> None:
        import csv

        row: dict[str, Any] = {"image": values["image"]}
        row |= dict(zip(COLUMNS, [*values["quaternion_xyzw"], *values["rotvec"]]))
        if "matrix" in values:
            row |= {f"r{i}{j}": values["matrix"][i][j] for i in range(3) for j in range(3)}
        row |= {k: v for k, v in values.items() if k in ("log_density", "ceiling") or k.startswith("share_")}
        if "modes" in values:
            row |= {"modes": len(values["modes"]), "verdict": values["verdict"]}
        writer = csv.DictWriter(sys.stdout, list(row), lineterminator="\n")
        if not self.header:
            self.header = list(row)
            writer.writeheader()
        writer.writerow(row)
        sys.stdout.flush()


class TablePrinter(Printer):
    def __init__(self, paths: list[Path]) -> None:
        self.width = min(32, max(len("image"), *(len(str(path)) for path in paths)))
        self.begun = False

    def add(self, values: dict[str, Any], bar: Any) -> None:
        sampled = "modes" in values
        if not self.begun:
            self.begun = True
            ceiling = values["ceiling"]
            about = "log density with respect to volume pi^2 (uniform -2.29"
            bar.write(about + (f", ceiling {ceiling:.2f})" if ceiling is not None else ")"))
            shares = "  in 5  in 15  in 30 deg  modes  in words" if sampled else ""
            bar.write(f"{'image':{self.width}}  {'quaternion xyzw':^35}  {'ln p':>7}{shares}")
        name = values["image"]
        name = name if len(name) <= self.width else "..." + name[3 - self.width :]
        x, y, z, w = values["quaternion_xyzw"]
        line = f"{name:{self.width}}  {x:+8.5f} {y:+8.5f} {z:+8.5f} {w:+8.5f}  {values['log_density']:7.2f}"
        if sampled:
            told = values.get("up_to_symmetry", values)
            five, fifteen, thirty = (100 * told[f"share_within_{limit}_deg"] for limit in (5, 15, 30))
            line += f"  {five:3.0f} %  {fifteen:4.0f} %  {thirty:8.0f} %  {len(told['modes']):5d}  {told['verdict']}"
        bar.write(line)
