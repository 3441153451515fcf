"""Draw rotations from the posterior of an image.

aquamam sample die.png -n 1000 > samples.csv
aquamam sample photos/ -n 100 --seed 7 --out samples.csv
aquamam sample part.png -n 20 --model runs/part --json

Columns: image, qx, qy, qz, qw (object to camera, xyzw), log_density (volume pi^2).
"""

import argparse
import csv
import json
from collections.abc import Iterator
from typing import Any

from aquamam.cli.main import Pictures, add, load_model, output, whole

AT_ONCE = 20_000  # draws of an image that are held in memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add(parser, "images", "--model", "--device", "--seed")
    parser.add_argument("-n", "--count", type=whole(1), default=100, metavar="N", help="draws from each image")
    add(parser, "--json", help="one JSON object an image instead of CSV")
    add(parser, "--out")


def run(args: argparse.Namespace) -> int:
    pictures = Pictures(args.images)
    model = load_model(args.model, args.device)
    records = []
    with output(args.out) as file:
        writer = csv.writer(file, lineterminator="\n")
        if not args.json:
            writer.writerow(["image", "qx", "qy", "qz", "qw", "log_density"])
        for path, image in pictures:
            drawn = draws(model, image, args.count, args.seed)
            if args.json:
                q, log_p = zip(*drawn)
                records.append({"image": str(path), "quaternions_xyzw": q, "log_density": log_p})
            else:
                writer.writerows([path, *q, log_p] for q, log_p in drawn)
        if args.json:
            print(json.dumps(records), file=file)
    return pictures.status


def draws(model: Any, image: Any, count: int, seed: int) -> Iterator[tuple[list[float], float]]:
    """Quaternions and their log densities; they depend on nothing but the image, the count and the seed."""
    import torch

    generator = model.generator(seed)
    with torch.inference_mode():
        posterior = model([image])
        for start in range(0, count, AT_ONCE):
            q = posterior.sample((min(AT_ONCE, count - start),), generator=generator)
            log_p = torch.round(posterior.log_prob(q)[:, 0].double(), decimals=4)
            yield from zip(torch.round(q[:, 0].double(), decimals=7).tolist(), log_p.tolist())
