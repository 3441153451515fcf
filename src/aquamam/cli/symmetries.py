"""Find the rotations that leave an object's look unchanged, from its mesh.

aquamam symmetries part.stl
aquamam symmetries part.obj --suggest               # also what is nearly one, and how visible the difference is
aquamam symmetries part.stl --bop models_info.json  # for BOP's tools; --id names the object there
aquamam symmetries die --map die.png                # how many rotations look the same, by view direction
"""

import argparse
import json
from pathlib import Path
from typing import Any

from aquamam.cli.main import MESH, add
from aquamam.errors import InputError, require
from aquamam.files import write_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("object", metavar="OBJECT", help=MESH)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--geometry", action="store_true", help="of the geometry alone, whatever its colours")
    which.add_argument("--texture", action="store_true", help="of geometry and colours alone (default: both)")
    option("--suggest", action="store_true", help="list near-symmetries and how visible their difference is")
    option("--bop", type=Path, metavar="FILE", help="write BOP's models_info.json, or add to it")
    option("--id", type=int, default=1, metavar="N", help="the object's number there")
    option("--map", type=Path, metavar="PNG", help="draw how many rotations look the same from each side")
    option("--views", type=int, default=100, metavar="N", help="directions of the map")
    add(parser, "--tolerance", "--untextured", "--json")


def run(args: argparse.Namespace) -> None:
    from aquamam.plotting.style import FORMATS
    from aquamam.rendering.solids import mesh_of, open_object
    from aquamam.shape.matching import Tolerance
    from aquamam.shape.surface import Surface
    from aquamam.shape.symmetries import find_symmetries, models_info, near_symmetries
    from aquamam.shape.view_map import save_map, view_ambiguity

    infos = {}
    if args.bop is not None and args.bop.exists():  # what cannot be written is told before the work
        try:
            infos = json.loads(args.bop.read_text())
        except ValueError as error:
            raise InputError(f"{args.bop} is there but no JSON ({error}); move it away, or repair it.") from None
        told = f"{args.bop} must hold one JSON object, as BOP's models_info.json does; move it away."
        require(isinstance(infos, dict), told)
    drawable = args.map is None or args.map.suffix.lower() in FORMATS
    require(drawable, f"--map must end in {', '.join(FORMATS)}, got {args.map}.")
    mesh = mesh_of(open_object(args.object, scale=1.0, center=False, untextured=args.untextured))
    surface, tolerance = Surface.of(mesh), Tolerance(distance=args.tolerance)
    require(surface.painted or not args.texture, f"{args.object} has neither texture nor colours; drop --texture.")
    found = {}
    if not args.texture:
        found["geometry"] = find_symmetries(surface, paint=False, tolerance=tolerance)
    if surface.painted and not args.geometry:
        found["look"] = find_symmetries(surface, tolerance=tolerance)
    last = list(found.values())[-1]
    near = near_symmetries(surface, last) if args.suggest else None
    facts: dict[str, Any] = {"object": args.object, "centre": list(last.centre), "radius": last.radius}
    facts |= {name: one.to_dict() for name, one in found.items()}
    facts["models_info"] = models_info(mesh, last)
    if near is not None:
        facts["near"] = [one.to_dict() for one in near]
    if args.map is not None:  # about the symmetries' centre, or without any about the middle of the box, as rendered
        box = (mesh.vertices.min(0) + mesh.vertices.max(0)) / 2
        seen = view_ambiguity(
            Surface.of(mesh, box if last.found.name == "none" else last.centre), args.views, quiet=False
        )
        args.map.parent.mkdir(parents=True, exist_ok=True)
        save_map(seen, args.map)
        facts["views"] = [view.to_dict() for view in seen.views]
    if args.bop is not None:
        write_json(args.bop, infos | {str(args.id): facts["models_info"]}, indent=2)
    print(json.dumps(facts) if args.json else "\n".join(lines_of(args, mesh, found, near)))


def lines_of(args: argparse.Namespace, mesh: Any, found: dict[str, Any], near: list[Any] | None) -> list[str]:
    """What was found, for people."""

    def percent(share: float) -> str:
        return f"{100 * share:.2g} %" if share == 0 or share >= 2e-4 else "less than 0.02 %"

    last = list(found.values())[-1]
    place = f"radius {last.radius:.4g} about ({', '.join(f'{x:.4g}' for x in last.centre)}), in the file's units"
    lines = [f"{args.object}: {len(mesh.faces):,} faces, {place}"]
    for one in found.values():
        lines.append(f"{'geometry and colours' if one.painted else 'geometry alone'}: {one.headline}")
        lines += [f"  {words}" for words in one.found.words]
        if one.found.name != "none":
            away = f"points leave the surface by {percent(one.distance)} of the radius at most"
            tolerance = f"(tolerance {100 * one.tolerance.distance:g} %)"
            lines.append(f"  checked: {away} {tolerance}; in renders {percent(one.seen.share)} of its pixels change")
    if near is not None:
        lines.append("nearly:" if near else "nearly: nothing within five times the tolerance")
    for miss in near or ():
        change = f"{percent(miss.seen.share)} of pixels change, the most by {miss.seen.largest:.0f} of 255"
        lines.append(f"  {miss.words}: {change}; surface off by {percent(miss.distance)}")
    return [*lines, f"BOP: {json.dumps(last.to_bop())}"]
