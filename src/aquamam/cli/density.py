"""Log densities of rotations from a CSV file, given an image.

aquamam density die.png --rotations rotations.csv
aquamam sample die.png -n 5 | aquamam density die.png --rotations -
aquamam density part.png --rotations candidates.csv --measure 1 --out scored.csv
aquamam density part.png --rotations grid.csv --within 1e-6 --out map.csv

The CSV file has columns qx, qy, qz, qw (object to camera); other columns are kept, and log_density is added.
"""

import argparse
import csv
import json
import math
import sys
from pathlib import Path

from aquamam.cli.main import add, load_model, output
from aquamam.errors import InputError

COMPONENTS = ("qx", "qy", "qz", "qw")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    add(parser, "image", "--model", "--device")
    option("--rotations", required=True, metavar="CSV", help="a file with columns qx,qy,qz,qw; - reads stdin")
    option("--measure", choices=["pi2", "1", "8pi2"], default="pi2", help="total volume of the rotations")
    quick = "for many rotations: many times quicker, with a total variation of at most so much from the exact density"
    option("--within", type=float, default=0.0, metavar="TOLERANCE", help=quick)
    add(parser, "--json", help="one JSON object instead of CSV")
    add(parser, "--out")


def run(args: argparse.Namespace) -> None:
    import torch

    from aquamam.network.images import read_image
    from aquamam.posterior.maps import within

    header, rows, quaternions = read_rotations(args.rotations)
    picture = read_image(args.image)
    model = load_model(args.model, args.device)
    q = torch.tensor(quaternions, dtype=torch.float64, device=model.device).reshape(-1, 4)
    with torch.inference_mode():
        posterior = model([picture])
        posterior = within(posterior, args.within) if args.within else posterior
        log_p = posterior.log_prob(q[:, None], measure=args.measure)[:, 0].double()
    values = [round(value, 5) for value in log_p.tolist()]
    with output(args.out) as file:
        if args.json:
            about = {"image": args.image, "measure": args.measure, "ceiling": posterior.ceiling}
            print(json.dumps({**about, "quaternions_xyzw": quaternions, "log_density": values}), file=file)
            return
        kept = [name for name in header if name != "log_density"]  # a column of that name is replaced
        writer = csv.DictWriter(file, [*kept, "log_density"], lineterminator="\n")
        writer.writeheader()
        writer.writerows({**row, "log_density": value} for row, value in zip(rows, values))


def read_rotations(source: str) -> tuple[list[str], list[dict[str, str]], list[list[float]]]:
    """The header, the rows as text, and their quaternions xyzw, checked one by one."""
    from aquamam.geometry.rotations import UNIT_TOLERANCE

    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8-sig")
    except UnicodeDecodeError:
        raise InputError(f"rotations must be a CSV text file, and {source} is not text.") from None
    reader, rows, quaternions = csv.DictReader(text.splitlines()), [], []
    reader.fieldnames = header = [field.strip().lower() for field in reader.fieldnames or ()]
    if missing := ", ".join(column for column in COMPONENTS if column not in header):
        raise InputError(f"{source} must begin with a header that names columns qx, qy, qz, qw, and lacks {missing}.")
    for row in reader:
        line = f"line {reader.line_num} of {source}"
        try:
            q = [float(row[column]) for column in COMPONENTS]
        except (TypeError, ValueError):
            q = []
        if not q or None in row or None in row.values():  # as DictReader marks too many fields and too few
            raise InputError(f"{line} must hold {len(header)} fields with numbers in qx, qy, qz, qw.")
        if not abs(math.hypot(*q) - 1) <= UNIT_TOLERANCE:  # also catches NaN
            raise InputError(f"{line} must hold a unit quaternion, got norm {math.hypot(*q):.4g}; divide by it.")
        rows.append(row)
        quaternions.append(q)
    return header, rows, quaternions
