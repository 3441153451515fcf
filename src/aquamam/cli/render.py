"""Render a data set of an object under random rotations.

aquamam render die --out data/die --size 64 --count 20000
aquamam render part.obj --preview sheet.png
aquamam render part.obj --out data/part --split train=50000,valid=1000,test=1000 --background random
aquamam render tet cube icosa --out data/solids --split paper
aquamam render die --out data/die --split paper --shard 1/4     # on the first of four machines with a shared disk
torchrun --nproc-per-node 4 -m aquamam render die --out data/die

A render that was stopped, or ran out of disk, goes on when the same command is run again.
"""

import argparse
import json
import os
import signal
import sys
import time
from argparse import ArgumentTypeError
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from aquamam.cli.main import add, given, save_image, whole
from aquamam.errors import InputError

if TYPE_CHECKING:
    from aquamam.data.disk.layout import Manifest
    from aquamam.data.disk.writing import RenderSpec
    from aquamam.geometry.symmetry import SymmetryGroup

CAMERA = {  # options that are fields of RenderSettings
    "supersample": (int, "samples a pixel, each way"),
    "distance": (float, "from the camera to the object's centre"),
    "fov_deg": (float, "vertical angle of view"),
    "ambient": (float, "light from everywhere"),
    "diffuse": (float, "light from above the camera"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    option("objects", nargs="+", metavar="OBJECT", help="a solid or a mesh file; several are classes")
    option("--out", type=Path, metavar="DIR", help="folder of the data set")
    option("--preview", type=Path, metavar="PNG", help="first write a contact sheet (or only that)")
    sizes = parser.add_mutually_exclusive_group()
    option = sizes.add_argument
    option("--split", type=parse_split, default="paper", metavar="SIZES", help="train=500,... or paper: 520,000 images")
    option("--count", dest="split", type=parse_count, metavar="N", help="images in all, split 50:1:1 as the paper does")
    option = parser.add_argument
    add(parser, "--size", default=224)
    add(parser, "--seed", help="of rotations and backgrounds")
    option("--workers", type=int, metavar="N", help="processes (default: one for each core)")
    option("--shard", type=parse_share, metavar="I/N", help="only share I (1 ... N) of N; torchrun sets it by itself")
    option("--format", choices=["auto", "raw", "png"], default="auto", help="arrays, or PNG in tar; auto: raw to 96 px")
    groups = "of a mesh: none, C2, D3, cone or cylinder about AXIS x, y or z, tetrahedral, octahedral, icosahedral, or "
    option("--symmetry", metavar="NAME[:AXIS]", help=groups + "a JSON file (default: unknown)")
    camera = parser.add_argument_group("camera, light and mesh (defaults: the paper's)")
    option = camera.add_argument
    option("--up", default="y", metavar="AXIS", help="a mesh file's axis that becomes y, up: x, z, or -z")
    option("--scale", type=parse_scale, default="fit", help="of a mesh file: fit fills the view, or a factor")
    add(camera, "--untextured")
    option("--background", type=parse_background, help="R,G,B or a colour's name, or random for one an image")
    for name, (kind, help) in CAMERA.items():
        option(f"--{name.removesuffix('_deg')}", type=kind, dest=name, metavar="X", help=help)


def run(args: argparse.Namespace) -> None:
    import numpy as np
    from tqdm import tqdm

    from aquamam.data.disk.writing import write_dataset
    from aquamam.rendering.render import contact_sheet

    if args.out is None and args.preview is None:
        raise InputError("render needs somewhere to write, got neither --out DIR nor --preview PNG.")
    torchrun = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"}
    rank, world, local = (int(os.environ.get(name, default)) for name, default in torchrun.items())
    spec, manifest = plan(args)
    if args.preview is not None and rank == 0:
        split, numbers = next(iter(manifest.splits)), np.arange(32)
        rotations = spec.rotations(split, numbers)
        labels = [f"{x:+.2f} {y:+.2f}\n{z:+.2f} {w:+.2f}" for x, y, z, w in rotations]
        save_image(contact_sheet(spec.images(split, numbers, rotations), 8, labels), args.preview, "--preview")
    if args.out is None:
        return
    part, workers, names = args.shard or (rank, world), args.workers, ", ".join(spec.names)
    if workers is None:
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        work = sum(manifest.splits.values()) / part[1] * args.size**2 / (64**2 * 3000)  # in units of 2 s, about
        workers = max(1, min(cores // local, round(work)))  # a process takes a second or two to start
    if hasattr(signal, "SIGPIPE"):  # a rendering process that dies must be told of, not kill this one
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    started, often = time.monotonic(), 0.1 if sys.stderr.isatty() else 10.0
    with tqdm(unit="img", desc=f"render {names}", disable=rank != 0, mininterval=often) as bar:

        def progress(total: int, done: int) -> Any:
            bar.reset(total)
            bar.initial = bar.n = done
            return bar.update

        images, new = write_dataset(args.out, spec, manifest, workers=workers, part=part, progress=progress)
    seconds = time.monotonic() - started
    share = "" if part[1] == 1 else f" (share {part[0] + 1} of {part[1]})"
    now = f"{new:,} rendered now in {seconds:.0f} s ({new / max(seconds, 1e-9):.0f}/s)"
    print(f"{args.out}{share}: {images:,} images of {names} at {args.size} px, {now}")


def plan(args: argparse.Namespace) -> "tuple[RenderSpec, Manifest]":
    """What to draw and what the data set says of itself, from the arguments."""
    from aquamam.data.disk.layout import RAW_UP_TO, Manifest, shard_size_for
    from aquamam.data.disk.writing import RenderSpec
    from aquamam.rendering.render import RenderSettings
    from aquamam.rendering.solids import NAMES, mesh_of, open_object

    meshes, objects, told = [], [], args.symmetry and parse_symmetry(args.symmetry)
    for thing in args.objects:
        if thing in NAMES and told is not None:
            raise InputError(f"--symmetry is for mesh files, got it with the solid {thing}, which knows its own.")
        if thing in NAMES and len(args.objects) == 1 and (args.up, args.scale) != ("y", "fit"):
            raise InputError(f"--up and --scale are for mesh files, got them with the solid {thing}.")
        found = open_object(thing, up=args.up, scale=args.scale, untextured=args.untextured)
        mesh = mesh_of(found)
        symmetry = getattr(found, "symmetry", told)  # a file does not know its own
        source = f"{Path(thing).name}, up {args.up}, scale {args.scale}" if found is mesh else f"solid {thing}"
        about = {"name": mesh.name, "mesh": mesh.hash, "symmetry": symmetry and symmetry.to_dict(), "source": source}
        meshes.append(mesh)
        objects.append(about)
    settings = RenderSettings(size=args.size, **given(args, *CAMERA, "background"))
    encoding = ("raw" if args.size <= RAW_UP_TO else "png") if args.format == "auto" else args.format
    shards: dict[str, Any] = {"shard_size": shard_size_for(args.split, encoding, settings.shape), "encoding": encoding}
    manifest = Manifest(objects=objects, settings=settings.to_dict(), seed=args.seed, splits=args.split, **shards)
    names = tuple(mesh.name for mesh in meshes)
    return RenderSpec(names=names, meshes=tuple(meshes), settings=settings, seed=args.seed), manifest


def parse_symmetry(text: str) -> "SymmetryGroup":
    """A group by its name, perhaps with an axis (C4:y), or from a JSON file with its dictionary or BOP's entries."""
    from aquamam.geometry.symmetry import SymmetryGroup

    if text.endswith(".json"):
        try:
            data = json.loads(Path(text).read_text())
            return SymmetryGroup.from_dict(data) if "elements" in data else SymmetryGroup.from_bop(data)
        except (OSError, ValueError) as error:
            raise InputError(f"--symmetry must name a JSON file with one, got what cannot be read ({error}).") from None
    name, _, letter = text.partition(":")
    if name in ("none", "tetrahedral", "octahedral", "icosahedral") and not letter:
        return getattr(SymmetryGroup, "trivial" if name == "none" else name)()
    if letter in ("", "x", "y", "z"):
        axis, across = (tuple(float(c == a) for c in "xyz") for a in (letter or "z", "y" if letter == "x" else "x"))
        if name in ("cone", "cylinder"):
            return SymmetryGroup.revolution(axis, flip=name == "cylinder")
        if name[:1] in ("C", "D") and name[1:].isdigit():
            n = int(name[1:])
            return SymmetryGroup.cyclic(n, axis) if name[0] == "C" else SymmetryGroup.dihedral(n, axis, across)
    raise InputError(f"--symmetry must be a name such as none, C4, D2:y or cylinder, or a JSON file, got {text!r}.")


# --- types of options -------------------------------------------------------------------------------------------------


def parse_scale(text: str) -> str | float:
    try:
        return text if text == "fit" else float(text)
    except ValueError:
        raise ArgumentTypeError(f"must be fit or a positive number, got {text!r}") from None


def parse_split(text: str) -> dict[str, int]:
    """Sizes such as train=500,valid=100, or the preset paper."""
    if text == "paper":
        return parse_count("520000")
    pairs = [tuple(map(str.strip, piece.split("="))) for piece in text.split(",")]
    with suppress(ValueError):  # no number, or not two words
        splits = {name: int(count) for name, count in pairs}
        if len(splits) == len(pairs):
            return splits
    raise ArgumentTypeError(f"must read like train=500,valid=100 or paper, got {text!r}")


def parse_count(text: str) -> dict[str, int]:
    """The paper's proportions, 50:1:1, of a total."""
    count = whole(3)(text)
    held = max(1, round(count / 52))
    return {"train": count - 2 * held, "valid": held, "test": held}


def parse_share(text: str) -> tuple[int, int]:
    """I/N with 1 <= I <= N, as (I - 1, N)."""
    i, _, n = text.partition("/")
    if not (i.isdigit() and n.isdigit() and 1 <= int(i) <= int(n)):
        raise ArgumentTypeError(f"must read I/N with 1 <= I <= N, such as 1/4, got {text!r}")
    return int(i) - 1, int(n)


def parse_background(text: str) -> tuple[int, int, int] | str:
    """random, R,G,B or a colour's name."""
    from PIL import ImageColor

    try:
        return text if text == "random" else ImageColor.getrgb(f"rgb({text})" if "," in text else text)[:3]
    except ValueError:
        raise ArgumentTypeError(f"must be R,G,B, a colour's name or random, got {text!r}") from None
