"""Look into a data set of any known layout.

aquamam data inspect data/die                    every split: sizes, classes, symmetries, rotations
aquamam data inspect photos --out sheet.png      and a contact sheet of the first split
aquamam data inspect photos --rotation euler-YXZ-deg:yaw,pitch,roll --camera opencv
aquamam data inspect bop/tless --split test_primesense --allocentric --json
"""

import argparse
import json
from pathlib import Path
from typing import Any

from aquamam.cli.main import add, given, save_image
from aquamam.errors import require


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    inspect = actions.add_parser("inspect", help="print what was found", formatter_class=parser.formatter_class)
    option = inspect.add_argument
    option("path", type=Path, metavar="PATH", help="folder of the data set, or a CSV file")
    option("--split", help="only this one (default: all)")
    option("--kind", help="layout, if it is not to be recognised: aquamam, original, symsol, ...")
    option("--out", type=Path, metavar="PNG", help="write a contact sheet")
    option("--check", action="store_true", help="read every image, not only 256 of each split")
    kinds = "of a CSV: wxyz:a,b,c,d, euler-YXZ-deg:yaw,pitch,roll, ..."
    option("--rotation", metavar="KIND:COLUMNS", help=kinds)
    option("--camera", choices=["opengl", "opencv"], help="of a CSV's rotations (default: opengl)")
    option("--inverted", action="store_true", default=None, help="a CSV's rotations take the camera to the object")
    shown = "of BOP: rotations as the crops show them (default), or with --no-allocentric those of the camera"
    option("--allocentric", action=argparse.BooleanOptionalAction, help=shown)
    add(inspect, "--json")


def run(args: argparse.Namespace) -> None:
    from aquamam.data.open import open_dataset, splits_of
    from aquamam.data.summary import sample_sheet, summarise
    from aquamam.rendering.render import contact_sheet

    options = given(args, "rotation", "camera", "inverted", "allocentric")
    splits = [args.split] if args.split else splits_of(args.path, args.kind)
    require(len(splits) > 0, f"{args.path} holds no split; docs/data.md shows the known layouts.")
    opened = {split: open_dataset(args.path, split, kind=args.kind, **options) for split in splits}
    summaries = {split: summarise(data, images=None if args.check else 256) for split, data in opened.items()}
    if args.out is not None:
        images, labels = sample_sheet(opened[splits[0]])
        save_image(contact_sheet(images, 8, labels), args.out, "--out")
    if args.json:
        print(json.dumps([{"split": split, **summary} for split, summary in summaries.items()]))
        return
    first = summaries[splits[0]]
    print(f"{args.path}: {first['kind']} layout, splits {', '.join(splits)}")
    for key, value in first["about"].items():
        if isinstance(value, (str, int, float, bool)) and key not in ("format", "version", "shard_size"):
            print(f"  {key:11s} {value}")
    for split, summary in summaries.items():
        print("\n".join(["", split, *lines_of(summary)]))
    if args.out is not None:
        print(f"contact sheet of {splits[0]}: {args.out}")


def lines_of(told: dict[str, Any]) -> list[str]:
    """One fact a line."""
    (least, most), spread = told["true_rotations"], told["rotations"]
    each = f"{least if least == most else f'{least} to {most}'} true rotation{'' if most == 1 else 's'}"
    sizes = ", ".join(f"{size} px" for size in list(told["image_sizes"])[:3]) or "none could be read"
    read = f"{told['images_read']:,} read, {len(told['unreadable'])} unreadable"
    near = f"not uniform, half within {spread['median_deg']:.1f} degrees of their mean"
    groups = {name: group or "not known" for name, group in told["symmetries"].items()}
    how = "consistent with uniform" if spread["uniform_p"] > 0.01 else near
    return [
        f"  examples    {told['examples']:,}, each with {each}",
        f"  images      {sizes} ({read}), mean colour {', '.join(f'{c:.0f}' for c in told['mean_colour'])}",
        *(f"              {sentence}" for sentence in told["unreadable"][:3]),
        *(f"  class       {name}: {count:,}, symmetry {groups[name]}" for name, count in told["classes"].items()),
        f"  rotations   {how} (Bingham's test, p = {spread['uniform_p']:.2g})",
    ]
