"""`aquamam density`: log densities of given rotations under the posterior of an image."""

import argparse
import csv
import json
import sys
from pathlib import Path
from typing import Any

HELP = "log densities of rotations from a CSV file, given an image"
EXAMPLES = """\
  aquamam density die.png --rotations rotations.csv
  aquamam sample die.png -n 5 | aquamam density die.png --rotations -
  aquamam density part.png --rotations candidates.csv --measure 1 --out scored.csv
  aquamam density part.png --rotations grid.csv --within 1e-6 --out map.csv
The CSV file has columns qx, qy, qz, qw (object to camera); other columns are kept, and log_density is added."""

NEEDED = ("qx", "qy", "qz", "qw")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from aquamam.cli.predict import add_model_arguments

    parser.add_argument("image", metavar="IMAGE", help="an image file")
    parser.add_argument(
        "--rotations", required=True, metavar="CSV", help="a file with columns qx,qy,qz,qw; - reads stdin"
    )
    add_model_arguments(parser)
    parser.add_argument(
        "--measure", choices=["pi2", "1", "8pi2"], default="pi2",
        help="total volume of the rotations: pi2 (default, the uniform density is -2.29), 1 (it is 0) or 8pi2",
    )  # fmt: skip
    parser.add_argument(
        "--within", type=float, default=0.0, metavar="TOLERANCE",
        help="for many rotations: a density at most so far from the model's own in total variation, such as 1e-6, many times quicker",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="one JSON object instead of CSV")
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="write there instead of printing")


def run(args: argparse.Namespace) -> int:
    import torch

    from aquamam.cli.predict import load_model
    from aquamam.cli.sample import writing_to
    from aquamam.network.images import read_image
    from aquamam.posterior.maps import within

    header, rows, q = read_rotations(args.rotations)
    picture = read_image(args.image)
    model = load_model(args)
    with torch.inference_mode():
        posterior = model([picture])
        if args.within:
            posterior = within(posterior, args.within)
        q = q.to(next(model.parameters()).device)
        log_p = posterior.log_prob(q[:, None], measure=args.measure)[:, 0].double()
    values = [round(value, 5) for value in log_p.tolist()]
    with writing_to(args.out) as file:
        if args.json:
            about = {"image": args.image, "measure": args.measure, "ceiling": posterior.ceiling}
            print(json.dumps({**about, "quaternions_xyzw": q.tolist(), "log_density": values}), file=file)
            return 0
        kept = [i for i, name in enumerate(header) if name != "log_density"]  # a column of that name is replaced
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow([*(header[i] for i in kept), "log_density"])
        writer.writerows([*(row[i] for i in kept), value] for row, value in zip(rows, values))
    return 0


def read_rotations(source: str) -> tuple[list[str], list[list[str]], Any]:
    """Header and rows as text, and the quaternions (n, 4) xyzw, checked row by row."""
    import torch

    from aquamam.errors import InputError
    from aquamam.geometry.rotations import UNIT_TOLERANCE

    name = "standard input" if source == "-" else source
    try:
        text = sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise InputError(f"there is no file of rotations at {source}.") from None
    except UnicodeDecodeError:
        raise InputError(f"rotations must be a CSV text file, and {name} is not text.") from None
    numbered = [(number, row) for number, row in enumerate(csv.reader(text.splitlines()), start=1) if row]
    table = [row for _, row in numbered]
    header = [field.strip().lower() for field in table[0]] if table else []
    if missing := [column for column in NEEDED if column not in header]:
        raise InputError(
            f"{name} must begin with a header that names columns qx, qy, qz, qw, and lacks {', '.join(missing)}."
        )
    places = [header.index(column) for column in NEEDED]
    quaternions = []
    for number, row in numbered[1:]:
        try:
            if len(row) != len(header):
                raise ValueError
            q = [float(row[place]) for place in places]
            norm = sum(x * x for x in q) ** 0.5
        except ValueError:
            raise InputError(
                f"line {number} of {name} must hold {len(header)} fields with numbers in qx, qy, qz, qw."
            ) from None
        if not abs(norm - 1) <= UNIT_TOLERANCE:  # also catches NaN
            raise InputError(f"line {number} of {name} must hold a unit quaternion, got norm {norm:.4g}; divide by it.")
        quaternions.append(q)
    return header, table[1:], torch.tensor(quaternions, dtype=torch.float64).reshape(-1, 4)
