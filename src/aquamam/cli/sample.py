"""`aquamam sample`: rotations drawn from the posterior of an image."""

import argparse
import contextlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from aquamam.cli.options import seed

HELP = "draw rotations from the posterior of an image"
EXAMPLES = """\
  aquamam sample die.png -n 1000 > samples.csv
  aquamam sample photos/ -n 100 --seed 7 --out samples.csv
  aquamam sample part.png -n 20 --model runs/part --json
Columns: image, qx, qy, qz, qw (object to camera, xyzw), log_density (volume pi^2)."""

AT_ONCE = 20_000  # draws of an image that are held in memory


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from aquamam.cli.predict import add_model_arguments

    parser.add_argument("images", nargs="+", metavar="IMAGE", help="image files, or folders of them")
    add_model_arguments(parser)
    parser.add_argument("-n", "--count", type=int, default=100, help="draws from each image (default: 100)")
    parser.add_argument("--seed", type=seed, default=0, help="the same seed gives the same draws (default: 0)")
    parser.add_argument("--json", action="store_true", help="one JSON object an image instead of CSV")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write there instead of printing")


def run(args: argparse.Namespace) -> int:
    from tqdm import tqdm

    from aquamam.cli.predict import load_model
    from aquamam.errors import InputError
    from aquamam.network.images import find_images, read_image

    if args.count < 1:
        raise InputError(f"--count must be at least 1, got {args.count}.")
    paths = find_images(args.images)
    model = load_model(args)
    failed, records = 0, []
    with writing_to(args.out) as file:
        if not args.json:
            print("image,qx,qy,qz,qw,log_density", file=file)
        for path in tqdm(paths, unit="img", disable=None if len(paths) > 1 else True, leave=False):
            try:
                picture = read_image(path)
            except InputError as error:
                failed += 1
                tqdm.write(f"aquamam: {error}", file=sys.stderr)
                continue
            parts = draws(model, picture, args.count, args.seed)
            if args.json:
                both = [(q, log_p) for part in parts for q, log_p in part]
                values = {
                    "image": str(path),
                    "quaternions_xyzw": [q for q, _ in both],
                    "log_density": [p for _, p in both],
                }
                records.append(values)
                continue
            name = quoted(str(path))
            for part in parts:
                file.writelines(f"{name},{x},{y},{z},{w},{log_p}\n" for (x, y, z, w), log_p in part)
        if args.json:
            print(json.dumps(records), file=file)
    return 2 if failed else 0


def draws(model: Any, picture: Any, count: int, seed: int) -> Iterator[list[tuple[list[float], float]]]:
    """Quaternions and their log densities, in parts; an image's draws depend on nothing but itself, the count and the seed."""
    import torch

    with torch.inference_mode():
        posterior = model([picture])
        generator = torch.Generator(device=next(model.parameters()).device).manual_seed(seed)
        for start in range(0, count, AT_ONCE):
            q = posterior.sample((min(AT_ONCE, count - start),), generator=generator)
            log_p = posterior.log_prob(q)[:, 0].double()
            rows = torch.round(q[:, 0].double(), decimals=7).tolist()
            yield list(zip(rows, torch.round(log_p, decimals=4).tolist()))


def quoted(text: str) -> str:
    """A field of a CSV file."""
    return '"' + text.replace('"', '""') + '"' if any(c in text for c in ',"\n\r') else text


@contextlib.contextmanager
def writing_to(path: Path | None) -> Iterator[IO[str]]:
    """A file to write to, or standard output."""
    if path is None:
        yield sys.stdout
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "w", encoding="utf-8", newline="") as file:
        yield file
