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

from aquamam.cli.main import add, save_image
from aquamam.errors import InputError

MANY_CLASSES = 12  # more are counted, not listed


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

    given = ("rotation", "camera", "inverted", "allocentric")
    options: dict[str, Any] = {name: getattr(args, name) for name in given if getattr(args, name) is not None}
    splits = [args.split] if args.split else list(splits_of(args.path, args.kind))
    if not splits:
        raise InputError(f"{args.path} holds no split; docs/data.md shows the known layouts.")
    summaries: list[dict[str, Any]] = []
    for split in splits:
        data = open_dataset(args.path, split, kind=args.kind, **options)
        summaries.append({"split": split} | summarise(data, images=None if args.check else 256))
        if args.out is not None and split == splits[0]:
            images, labels = sample_sheet(data)
            save_image(contact_sheet(images, 8, labels), args.out, "--out")
    if args.json:
        print(json.dumps(summaries))
        return
    print(f"{args.path}: {summaries[0]['kind']} layout, splits {', '.join(splits)}")
    for key, value in summaries[0]["about"].items():
        if isinstance(value, (str, int, float, bool)) and key not in ("format", "version", "shard_size"):
            print(f"  {key:11s} {value}")
    for summary in summaries:
        print_summary(**summary)
    if args.out is not None:
        print(f"contact sheet of {splits[0]}: {args.out}")


def print_summary(
    *, split: str, classes: dict[str, int], image_sizes: dict[str, int], rotations: dict[str, Any], **told: Any
) -> None:
    """One fact a line."""
    least, most = told["true_rotations"]
    each = f"{least if least == most else f'{least} to {most}'} true rotation{'' if most == 1 else 's'}"
    sizes = ", ".join(f"{size} px" for size in list(image_sizes)[:3])
    if len(image_sizes) > 3:
        sizes += f" and {len(image_sizes) - 3} other sizes"
    read = f"{told['images_read']:,} read, {len(told['unreadable'])} unreadable"
    colour = ", ".join(f"{c:.0f}" for c in told["mean_colour"])
    print(f"\n{split}\n  examples    {told['examples']:,}, each with {each}")
    print(f"  images      {sizes or 'none could be read'} ({read}), mean colour {colour}")
    for sentence in told["unreadable"][:3]:
        print(f"              {sentence}")
    for name, count in list(classes.items())[:MANY_CLASSES]:
        print(f"  class       {name}: {count:,}, symmetry {told['symmetries'][name] or 'not known'}")
    if len(classes) > MANY_CLASSES:
        print(f"              and {len(classes) - MANY_CLASSES} classes more")
    test = f"(Bingham's test, p = {rotations['uniform_p']:.2g})"
    if rotations["uniform_p"] > 0.01:
        print(f"  rotations   consistent with uniform {test}")
    else:
        mean = ", ".join(f"{x:.3f}" for x in rotations["mean"])
        near = f"half lie within {rotations['median_deg']:.1f} degrees of the mean ({mean}) xyzw"
        print(f"  rotations   not uniform {test}: {near}")
    if rotations["repeated"]:
        print(f"              {rotations['repeated']:,} occur more than once")
