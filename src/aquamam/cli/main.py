"""The command `aquamam`: one parser, one place where errors become sentences, and what commands share: options, each
with one spelling, default and line of help, and the things that they name."""

import argparse
import json
import signal
import sys
import textwrap
from argparse import ArgumentTypeError
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from importlib import import_module
from pathlib import Path
from typing import IO, Any, NoReturn, TypeVar

from aquamam import __version__
from aquamam.errors import InputError, require

T = TypeVar("T")

# command -> its line in `aquamam --help`; the modules are imported only when asked for, so that help is quick
COMMANDS: dict[str, str] = {
    "predict": "predict rotations from images, and say how sure they are",
    "sample": "draw rotations from the posterior of an image",
    "density": "log densities of rotations from a CSV file, given an image",
    "plot": "draw the posterior of an image as a picture or a page to explore",
    "info": "what a preset or a checkpoint is",
    "reproduce": "an experiment of the paper: its numbers and its figures",
    "render": "render a solid or a mesh into a data set",
    "symmetries": "find the rotations that leave a mesh's look unchanged",
    "fit": "one command from a mesh to a calibrated model of it",
    "train": "train a preset; stopped, it resumes",
    "evaluate": "likelihood, errors, calibration and speed on held-out images",
    "serve": "an HTTP service, and a page that shows the posterior live",
    "export": "write a checkpoint as ONNX graphs",
    "bench": "how fast models are on this computer",
    "data": "look into a data set of any known layout",
    "demo": "the main job: see what a distribution over rotations looks like",
    "completion": "print a script for completion in bash, zsh, fish, ...",
}

EPILOG = """examples:
  aquamam info die                        the paper's die model: 20,000,756 parameters
  aquamam reproduce toy --out out/toy     the paper's toy experiment in minutes
  aquamam render die --out data/die --split train=100000,valid=2000,test=2000 --size 64
  aquamam demo
"""


class _Help(argparse.RawDescriptionHelpFormatter):
    """Examples as written, names and their help on one line, and defaults where there are any."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=28)
        self._action_max_length = 14  # argparse forgets that commands are indented

    def _get_help_string(self, action: argparse.Action) -> str:
        none = action.default is None or action.default is False or action.default in (argparse.SUPPRESS, "", [])
        return (action.help or "") + (" (default: %(default)s)" if action.option_strings and not none else "")


class _Parser(argparse.ArgumentParser):
    """Tells what is wrong in one sentence; the whole usage is a --help away."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"aquamam: {message.rstrip('.')}; {self.prog} --help tells more.\n")


def build_parser(command: str | None = None) -> argparse.ArgumentParser:
    """The whole parser, or one whose only filled-in command is `command`: filling in all would import all."""
    about = "Distributions over 3D rotations given an image."
    parser = _Parser(prog="aquamam", description=about, epilog=EPILOG, formatter_class=_Help)
    parser.add_argument("--version", action="version", version=f"aquamam {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands")
    for name, line in COMMANDS.items():
        sub = subparsers.add_parser(name, help=line, formatter_class=_Help)
        if command in (None, name):
            module = import_module(f"aquamam.cli.{name}")
            sub.description, examples, *notes = (module.__doc__ or "").split("\n\n")
            sub.epilog = "\n".join(["examples:", textwrap.indent(examples, "  "), *notes])
            module.add_arguments(sub)
            sub.set_defaults(run=module.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    arguments = list(sys.argv[1:] if argv is None else argv)
    parser = build_parser(next((a for a in arguments if not a.startswith("-")), ""))
    args = parser.parse_args(arguments)
    if args.command is None:
        parser.print_help()
        return 0
    # A closed pipe (| head) ends the command quietly, as it does for other tools.
    if hasattr(signal, "SIGPIPE") and argv is None:
        signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    try:
        return int(args.run(args) or 0)
    except KeyboardInterrupt:
        print("aquamam: stopped.", file=sys.stderr)
        return 130
    except (InputError, OSError) as error:
        told = f"{error.filename}: {error.strerror}." if isinstance(error, OSError) and error.filename else error
        print(f"aquamam: {told}", file=sys.stderr)
        return 2


# --- types of options -------------------------------------------------------------------------------------------------


def whole(least: int, most: int | None = None, *, or_zero: bool = False) -> Callable[[str], int]:
    """Whole numbers in a range."""
    rule = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"

    def parse(text: str) -> int:
        with suppress(ValueError):
            value = int(text)
            if (value == 0 and or_zero) or (value >= least and (most is None or value <= most)):
                return value
        raise ArgumentTypeError(f"must be {'0 or ' if or_zero else ''}{rule}, got {text!r}")

    return parse


def numbers(names: str, example: str) -> Callable[[str], tuple[float, ...]]:
    """As many numbers, between commas, as there are names."""

    def parse(text: str) -> tuple[float, ...]:
        with suppress(ValueError):
            values = tuple(map(float, text.split(",")))
            if len(values) == len(names.split(",")):
                return values
        raise ArgumentTypeError(f"must be numbers {names}, got {text!r}; try {example}")

    return parse


def duration(text: str) -> float:
    """Seconds of "45m", "2h", "90s" or "90"."""
    with suppress(ValueError):
        seconds = float(text.rstrip("smhd")) * {"m": 60, "h": 3600, "d": 86400}.get(text[-1:], 1)
        if 0 < seconds < 1e9:
            return seconds
    raise ArgumentTypeError(f"must be a positive number with s, m, h or d, got {text!r}; try 45m")


def setting(text: str) -> tuple[str, Any]:
    """FIELD=VALUE, the value as JSON where it parses as JSON."""
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise ArgumentTypeError(f"must be FIELD=VALUE, got {text!r}; try --set lr=0.001")
    with suppress(json.JSONDecodeError):
        value = json.loads(value)
    return name, value


# --- options ----------------------------------------------------------------------------------------------------------

ONNX = "onnxruntime on the CPU, with graphs made at a model's first use"
MOVED = "of symmetries: how far a surface may move, as a share of the radius"
OVERRIDE = "override a field of the model's or the training's config"
MESH = "a mesh file (.obj, .ply, .stl, .glb, .gltf, .off) or a solid's name"
PART = "of the part in the image: left, top, width, height in pixels"
INTRINSICS = "fx,fy,cx,cy in pixels, or a calibration file of ROS or OpenCV (YAML)"
BOX = numbers("left,top,width,height", "120,80,64,48")
SEED = whole(0, 2**31 - 1)  # every generator of random numbers here takes these
SHARED: dict[str, dict[str, Any]] = {
    "image": {"metavar": "IMAGE", "help": "an image file"},
    "images": {"metavar": "IMAGE", "nargs": "+", "help": "image files, or folders of them"},
    "--model": {"metavar": "MODEL", "default": "die", "help": "a bundled model's name, a checkpoint or a run's folder"},
    "--data": {"metavar": "DIR", "help": "a data set's folder, or render:NAME for renders of a solid or a mesh file"},
    "--backgrounds": {"type": Path, "metavar": "DIR", "help": "a folder of your own pictures to put behind the part"},
    "--device": {"help": "cpu, cuda, cuda:1, ... (default: a GPU if there is one)"},
    "--engine": {"choices": ["torch", "onnx"], "default": "torch", "help": "what runs the network; onnx: " + ONNX},
    "--threads": {"type": whole(1), "metavar": "N", "help": "CPU cores to use (default: all)"},
    "--seed": {"type": SEED, "metavar": "N", "default": 0, "help": "of everything random"},
    "--size": {"type": int, "metavar": "PX", "default": 64, "help": "side of an image"},
    "--steps": {"type": whole(1), "metavar": "N", "help": "optimiser steps"},
    "--time-budget": {"type": duration, "metavar": "TIME", "help": "wall-clock time: 45m, 2h, 90s"},
    "--tolerance": {"type": float, "metavar": "SHARE", "default": 0.01, "help": MOVED},
    "--set": {"type": setting, "action": "append", "default": [], "metavar": "FIELD=VALUE", "help": OVERRIDE},
    "--untextured": {"action": "store_true", "help": "leave out a mesh file's textures and colours"},
    "--box": {"type": BOX, "metavar": "X,Y,W,H", "help": PART},
    "--camera": {"metavar": "CAMERA", "help": INTRINSICS},
    "--out": {"type": Path, "metavar": "FILE", "help": "write there instead of printing"},
    "--json": {"action": "store_true", "help": "print JSON"},
    "--quiet": {"action": "store_true", "help": "no progress bars"},
}


def add(parser: argparse._ActionsContainer, *names: str, **changes: Any) -> None:
    """Add shared options, with changes to what `SHARED` says of them."""
    for name in names:
        short = ["-o"] if name == "--out" else []
        parser.add_argument(*short, name, **{**SHARED[name], **changes})


def given(args: argparse.Namespace, *names: str) -> dict[str, Any]:
    """Those of these options that were given; for the others their consumer has defaults."""
    return {name: value for name in names if (value := getattr(args, name, None)) is not None}


# --- what options name ------------------------------------------------------------------------------------------------


def load_model(source: str, device: str | None, engine: str = "torch") -> Any:
    """A model on a device, or on the best there is."""
    import torch

    if engine == "torch" and not source.endswith((".onnx", ".json")):
        from aquamam.checkpoints.checkpoint import load

        return load(source, device=device or ("cuda" if torch.cuda.is_available() else "cpu"))
    from aquamam.export import runner

    return runner.load(source, device=device or "cpu", engine=engine)


class Pictures:
    """The images that a command was given, with a progress bar; whatever is wrong with one costs a sentence. Processes
    that `torchrun` started have a share each."""

    def __init__(self, sources: list[str]):
        import torch.distributed as dist

        from aquamam.network.images import find_images

        self.paths = find_images(sources)
        self.status = 0  # of the command: 2 if something was wrong
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)

    def wrong(self, sentence: object) -> None:
        from tqdm import tqdm

        self.status = 2
        tqdm.write(f"aquamam: {sentence}", file=sys.stderr)

    def __iter__(self) -> Iterator[tuple[Path, Any]]:
        """The paths and the images that can be read, of this process's share."""
        from tqdm import tqdm

        hidden = True if len(self.paths) == 1 or self.rank else None
        for path in tqdm(self.mine(self.paths), unit="img", disable=hidden, leave=False):
            if (image := self.read(path)) is not None:
                yield path, image

    def read(self, path: Path) -> Any:
        from aquamam.network.images import read_image

        try:
            return read_image(path)
        except InputError as error:
            return self.wrong(error)

    def mine(self, things: Sequence[T]) -> Sequence[T]:
        """This process's share: a stretch, so that what all find in theirs is in order."""
        first, end = (len(things) * rank // self.world for rank in (self.rank, self.rank + 1))
        return things[first:end]

    def together(self, found: Iterator[T]) -> Iterator[T]:
        """What all processes found, for the first one to tell; one alone tells as it goes."""
        if self.world == 1:
            yield from found
            return
        import torch.distributed as dist

        parts: list[Any] = [None] * self.world
        dist.all_gather_object(parts, (list(found), self.status))
        if self.rank:
            self.status = 0
        else:
            self.status = max(status for _, status in parts)
            yield from (one for some, _ in parts for one in some)


def rendered_objects(source: str) -> list[Any]:
    """The solids and meshes of render:NAME[,NAME...]."""
    from aquamam.rendering.solids import open_object

    names = [name for name in source.removeprefix("render:").split(",") if name]
    require(len(names) > 0, "render: needs a solid or a mesh file; try --data render:die.")
    return [open_object(name) for name in names]


def with_settings(values: dict[str, Any], *configs: Any) -> list[Any]:
    """Copies of the model's and the training's config with the fields in `values`, of the types that they have now."""
    if unknown := sorted(values.keys() - {name for config in configs for name in config.__dataclass_fields__}):
        raise InputError(f"neither the model's nor the training's config has a field {unknown[0]!r}; see aquamam info.")
    changed = []
    for config in configs:
        now = config.to_dict()  # as JSON has them: lists, no tuples
        own = {name: value for name, value in values.items() if name in now}
        for name, value in own.items():
            kind = type(now[name])
            if kind is float and type(value) is int:
                own[name] = value = float(value)
            require(
                type(value) is kind, f"{name} must be {kind.__name__} like its default {now[name]!r}, got {value!r}."
            )
        changed.append(config.from_dict(now | own))
    return changed


def columns(rows: list[list[str]]) -> list[str]:
    """Cells as lines: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return ["  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip() for row in rows]


def output(path: Path | None) -> AbstractContextManager[IO[str]]:
    """A file to write to, or standard output."""
    if path is None:
        return nullcontext(sys.stdout)
    path.parent.mkdir(parents=True, exist_ok=True)
    return open(path, "w", encoding="utf-8", newline="")


def save_image(image: Any, path: Path, option: str) -> None:
    """Write a picture whose format the file's ending names."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        image.save(path)
    except ValueError:
        raise InputError(f"{option} must end in .png or another picture's ending, got {path.name}.") from None
