"""Predict rotations from images, or poses from boxes in them, and say how sure they are.

aquamam predict die.png                              one line: rotation, log density, certainty
aquamam predict photos/ --csv > rotations.csv        a whole folder
aquamam predict part.jpg --model runs/part --json --matrix
aquamam predict photos/ --samples 0 --csv            faster: rotations and log densities only
aquamam predict photo.jpg --model parts/duck --box 120,80,64,48 --camera camera.yaml      the pose in a box
aquamam predict photo.jpg --models parts/ --detections boxes.json --camera 600,600,320,240 --frame opencv
aquamam predict --bop lmo --models parts/ --out result.csv      BOP's result file
torchrun --nproc-per-node 8 -m aquamam predict photos/ --csv > rotations.csv

Quaternions are xyzw and take the object to the camera (x right, y up, z towards the viewer).
"""

import argparse
import csv
import json
import os
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from aquamam.cli.main import Pictures, add, load_model, whole
from aquamam.errors import require

BATCH = 32  # images at once where nothing is drawn at random


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option, form, where = parser.add_argument, *(parser.add_mutually_exclusive_group() for _ in range(2))
    add(parser, "images", nargs="*")
    add(parser, "--model", "--device", "--engine", "--seed")
    add(form, "--json", help="print a JSON list, one object an image")
    form.add_argument("--csv", action="store_true", help="print CSV, one row an image")
    option("--matrix", action="store_true", help="also give rotation matrices (with --json or --csv)")
    option("--samples", type=whole(16, or_zero=True), default=1000, metavar="N", help="for shares and modes; 0: none")
    strategies = "greedy (the paper's), beam (the best of 16), or expected (least expected error of samples)"
    option("--strategy", choices=["greedy", "beam", "expected"], default="greedy", help=strategies)
    add(where, "--box")
    where.add_argument("--detections", type=Path, metavar="FILE", help="COCO's or BOP's JSON, or YOLO's .txt")
    add(parser, "--camera")
    option("--models", type=Path, metavar="DIR", help="fitted parts, named like the boxes' categories or obj_000009")
    option("--bop", type=Path, metavar="DIR", help="answer the boxes of a BOP data set, with --models and --out")
    option("--split", default="test", help="of the BOP data set")
    option("--min-visible", type=float, default=0.1, metavar="SHARE", help="of BOP's objects, without --detections")
    option("--out", type=Path, metavar="CSV", help="BOP's result file to write, with --bop")
    frames = "opengl (y up, z towards the viewer) or opencv (y down, z forward)"
    option("--frame", choices=["opengl", "opencv"], default="opengl", help=frames)


def run(args: argparse.Namespace) -> int:
    if "RANK" not in os.environ:  # as torchrun sets it
        return answer(args)
    from aquamam.training.distributed import process_group

    with process_group(args.device):
        return answer(args)


def answer(args: argparse.Namespace) -> int:
    """Print a record for each image, or for each box; the first process does so for all."""
    if args.bop is not None:
        from aquamam.cli.crops import write_bop

        return write_bop(args)
    boxes = args.box is not None or args.detections is not None
    shown = args.json or args.csv or not args.matrix
    require(shown, "--matrix needs --json or --csv; a table has no room for matrices.")
    require(args.out is None, "--out is BOP's result file, with --bop; other answers are printed.")
    require(len(args.images) > 0, "nothing to predict; give images, or a BOP data set with --bop.")
    for name in ("camera", "models"):
        require(boxes or getattr(args, name) is None, f"--{name} needs boxes; give --box or --detections.")
    pictures = Pictures(args.images)
    if boxes:
        from aquamam.cli.crops import answer_boxes

        records = pictures.together(answer_boxes(args, pictures))
    else:
        records = pictures.together(predict(load_model(args.model, args.device, args.engine), pictures, args))
    if pictures.rank:
        list(records)
    elif args.json:
        print(json.dumps(list(records), indent=1 if sys.stdout.isatty() else None))
    elif args.csv:
        write_csv(records)
    else:
        print_table(records, 40 if boxes else min(32, max(5, *(len(str(path)) for path in pictures.paths))))
    return pictures.status


def predict(model: Any, pictures: Iterable[tuple[Path, Any]], args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """A record for each image. Samples of an image must not depend on the images beside it, so where some are drawn
    images go one by one; drawing takes longest anyway."""
    import torch

    from aquamam.geometry.rotations import opencv_to_opengl
    from aquamam.posterior.answers import answers
    from aquamam.posterior.distribution import Rotated

    images, about = iter(pictures), {} if args.frame == "opengl" else {"frame": args.frame}
    while some := list(islice(images, 1 if args.samples or args.strategy == "expected" else BATCH)):
        drawn: dict[str, Any] = {"strategy": args.strategy, "generator": model.generator(args.seed)}
        with torch.inference_mode():
            posterior = model([image for _, image in some])
            if args.frame == "opencv":
                posterior = Rotated(posterior, opencv_to_opengl(torch.tensor([[0.0, 0.0, 0.0, 1.0]] * len(some))))
            found = answers(posterior, args.samples, symmetry=model.symmetry, **drawn)
        for (path, _), one in zip(some, found):
            yield {"image": str(path), **about, **one.to_dict(matrix=args.matrix)}


def write_csv(records: Iterator[dict[str, Any]]) -> None:
    """One row a record; shares and modes where there are samples."""
    writer = None
    for values in records:
        row: dict[str, Any] = {k: values[k] for k in ("image", "model", "detection", "frame") if k in values}
        row |= dict(zip(("left", "top", "width", "height"), values.get("box", ())))
        row |= dict(zip(("qx", "qy", "qz", "qw", "rx", "ry", "rz"), values["quaternion_xyzw"] + values["rotvec"]))
        row |= {f"r{i}{j}": x for i, line in enumerate(values.get("matrix", ())) for j, x in enumerate(line)}
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


def print_table(records: Iterator[dict[str, Any]], width: int) -> None:
    """Lines for people; the first record tells what the head says."""
    from tqdm import tqdm

    for number, values in enumerate(records):
        boxed, sampled, name = "box" in values, "modes" in values, values["image"]
        if number == 0:
            ceiling = "" if values["ceiling"] is None else f", ceiling {values['ceiling']:.2f}"
            near = "; in 5, 15, 30 deg: samples so close to the prediction" if sampled else ""
            what = "quaternion xyzw" + (f", {values['frame']} camera" if "frame" in values else "")
            place = f"  {'translation':^35}" if boxed else ""
            shares = "  in 5  in 15  in 30 deg  modes  in words" if sampled else ""
            tqdm.write(f"ln p: log density with respect to volume pi^2 (uniform -2.29{ceiling}){near}")
            tqdm.write(f"{'image':{width}}  {what:^35}{place}  {'ln p':>7}{shares}")
        if boxed:
            name = f"{Path(name).name} {values['model']} {','.join(f'{edge:g}' for edge in values['box'])}"
            where = " ".join([*(f"{v:+10.4g}" for v in values.get("translation", ())), values.get("unit", "-")])
        name = name if len(name) <= width else "..." + name[3 - width :]
        place, shares = f"  {where:^35}" if boxed else "", ""
        if sampled:
            told = values.get("up_to_symmetry", values)
            five, fifteen, thirty = (100 * told[f"share_within_{limit}_deg"] for limit in (5, 15, 30))
            shares = f"  {five:3.0f} %  {fifteen:4.0f} %  {thirty:8.0f} %  {len(told['modes']):5d}  {told['verdict']}"
        rotation = " ".join(f"{x:+8.5f}" for x in values["quaternion_xyzw"])
        tqdm.write(f"{name:{width}}  {rotation}{place}  {values['log_density']:7.2f}{shares}")
