"""Predict rotations from images, or poses from boxes in them, and say how sure they are."""

import argparse
import csv
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aquamam.cli.crops import BopRows, Rows, add_crop_options
from aquamam.cli.options import Pictures, add, generator_for, load_model, whole
from aquamam.errors import InputError

EXAMPLES = """\
  aquamam predict die.png                              one line: rotation, log density, certainty
  aquamam predict photos/ --csv > rotations.csv        a whole folder
  aquamam predict part.jpg --model runs/part --json --matrix
  aquamam predict photos/ --samples 0 --csv            faster: rotations and log densities only
  aquamam predict photo.jpg --model parts/duck --box 120,80,64,48 --camera camera.yaml      the pose in a box
  aquamam predict photo.jpg --models parts/ --detections boxes.json --camera 600,600,320,240 --frame opencv
  aquamam predict --bop lmo --models parts/ --out result.csv      BOP's result file
Quaternions are xyzw and take the object to the camera (x right, y up, z towards the viewer)."""

BATCH = 32  # images at once where nothing is drawn at random


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, "images", nargs="*")
    add(parser, "--model", "--device", "--engine", "--seed")
    form = parser.add_mutually_exclusive_group()
    add(form, "--json", help="print a JSON list, one object an image")
    form.add_argument("--csv", action="store_true", help="print CSV, one row an image")
    parser.add_argument("--matrix", action="store_true", help="also give rotation matrices (with --json or --csv)")
    samples = "drawn for shares and modes; 0 gives rotations and log densities only"
    parser.add_argument("--samples", type=whole(16, or_zero=True), default=1000, metavar="N", help=samples)
    strategies = "greedy (the paper's), beam (the best of 16), or expected (least expected error of samples)"
    parser.add_argument("--strategy", choices=["greedy", "beam", "expected"], default="greedy", help=strategies)
    add_crop_options(parser)
    boxes = "boxes: COCO's or BOP's JSON, or YOLO's .txt of one image; one row each"
    parser.add_argument("--detections", type=Path, metavar="FILE", help=boxes)
    several = "a folder of fitted parts, named like the categories of the boxes or obj_000009"
    parser.add_argument("--models", type=Path, metavar="DIR", help=several)
    parser.add_argument(
        "--bop", type=Path, metavar="DIR", help="answer the boxes of a BOP data set, with --models and --out"
    )
    parser.add_argument("--split", default="test", help="of the BOP data set")
    least = "of BOP's data, without --detections: least visible share of an object"
    parser.add_argument("--min-visible", type=float, default=0.1, metavar="SHARE", help=least)
    parser.add_argument("--out", type=Path, metavar="CSV", help="BOP's result file to write, with --bop")
    frames = "of rotations and translations: opengl (y up, z towards the viewer) or opencv (y down, z forward)"
    parser.add_argument("--frame", choices=["opengl", "opencv"], default="opengl", help=frames)


def run(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    if args.matrix and not (args.json or args.csv):
        raise InputError("--matrix needs --json or --csv; a table has no room for matrices.")
    if args.bop is not None:
        rows = BopRows(args)
        print(f"{args.out}: {rows.write()} poses")
        return rows.status
    if args.out is not None:
        raise InputError("--out is BOP's result file, with --bop; other answers are printed.")
    if not args.images:
        raise InputError("nothing to predict; give images, or a BOP data set with --bop.")
    pictures: Pictures | Rows
    if args.box is not None or args.detections is not None:
        pictures = Rows(args)
        records: Iterator[dict[str, Any]] = (told for _, told in pictures.records())
    else:
        if idle := next((name for name in ("camera", "models") if getattr(args, name) is not None), None):
            raise InputError(f"--{idle} needs boxes; give --box or --detections.")
        pictures = Pictures(args.images)
        records = predict_all(load_model(args.model, args.device, args.engine), pictures, args)
    if args.json:
        print(json.dumps(list(records), indent=1 if sys.stdout.isatty() else None))
    elif args.csv:
        write_csv(records)
    else:
        longest = max(5, *(len(str(path)) for path in pictures.paths))
        for line in table(records, 40 if isinstance(pictures, Rows) else min(32, longest)):
            tqdm.write(line)
    return pictures.status


def predict_all(model: Any, pictures: Pictures, args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A record for each readable image.

    Samples of an image must not depend on the images beside it, so with samples images go one by one; drawing takes
    longest anyway.
    """
    for names, batch in pictures.batches(1 if args.samples else BATCH):
        for name, record in zip(names, predict(model, batch, args)):
            yield {"image": name, **record}


def predict(model: Any, pictures: list, args: argparse.Namespace) -> list[dict[str, Any]]:
    """One record an image."""
    import torch

    from aquamam.geometry.rotations import opencv_to_opengl
    from aquamam.posterior.answers import answers
    from aquamam.posterior.frames import Rotated

    options: dict[str, Any] = {"strategy": args.strategy, "generator": generator_for(model, args.seed)}
    with torch.inference_mode():
        posterior = model(pictures)
        if args.frame == "opencv":
            posterior = Rotated(posterior, opencv_to_opengl(torch.tensor([[0.0, 0.0, 0.0, 1.0]] * len(pictures))))
        found = answers(posterior, args.samples, symmetry=model.symmetry, **options)
    named = {"frame": args.frame} if args.frame != "opengl" else {}
    return [named | answer.to_dict(matrix=args.matrix) for answer in found]


def write_csv(records: Iterator[dict[str, Any]]) -> None:
    """One row a record; shares and modes where there are samples."""
    writer = None
    for values in records:
        row: dict[str, Any] = {
            name: values[name] for name in ("image", "model", "detection", "frame") if name in values
        }
        row |= dict(zip(("left", "top", "width", "height"), values.get("box", ())))
        row |= dict(zip(("qx", "qy", "qz", "qw", "rx", "ry", "rz"), values["quaternion_xyzw"] + values["rotvec"]))
        if "matrix" in values:
            row |= {f"r{i}{j}": values["matrix"][i][j] for i in range(3) for j in range(3)}
        if "box" in values:  # not every model tells translations
            row |= dict(zip(("tx", "ty", "tz", "unit"), [*values.get("translation", [""] * 3), values.get("unit", "")]))
        row |= {k: v for k, v in values.items() if k in ("log_density", "ceiling") or k.startswith("share_")}
        if "modes" in values:
            row |= {"modes": len(values["modes"]), "verdict": values["verdict"]}
        if writer is None:
            writer = csv.DictWriter(sys.stdout, list(row), lineterminator="\n")
            writer.writeheader()
        writer.writerow(row)
        sys.stdout.flush()


def table(records: Iterator[dict[str, Any]], width: int) -> Iterator[str]:
    """Lines for people; the first record tells what the head says."""
    for number, values in enumerate(records):
        if number == 0:
            ceiling = "" if values["ceiling"] is None else f", ceiling {values['ceiling']:.2f}"
            yield f"log density with respect to volume pi^2 (uniform -2.29{ceiling})"
            shares = "  in 5  in 15  in 30 deg  modes  in words" if "modes" in values else ""
            place = f"  {'translation':^32}" if "box" in values else ""
            frame = f", {values['frame']} camera" if "frame" in values else ""
            yield f"{'image':{width}}  {'quaternion xyzw' + frame:^35}{place}  {'ln p':>7}{shares}"
        name = values["image"]
        if "box" in values:
            name = f"{Path(name).name} {values['model']} {','.join(f'{edge:g}' for edge in values['box'])}"
        name = name if len(name) <= width else "..." + name[3 - width :]
        x, y, z, w = values["quaternion_xyzw"]
        line = f"{name:{width}}  {x:+8.5f} {y:+8.5f} {z:+8.5f} {w:+8.5f}"
        if "box" in values:
            line += "  " + (" ".join(f"{v:+10.4g}" for v in values.get("translation", ())) or "-").center(32)
        line += f"  {values['log_density']:7.2f}"
        if "modes" in values:
            told = values.get("up_to_symmetry", values)
            five, fifteen, thirty = (100 * told[f"share_within_{limit}_deg"] for limit in (5, 15, 30))
            line += f"  {five:3.0f} %  {fifteen:4.0f} %  {thirty:8.0f} %  {len(told['modes']):5d}  {told['verdict']}"
        yield line
