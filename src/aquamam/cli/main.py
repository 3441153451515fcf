"""The command `aquamam`: one parser, one place where errors become sentences."""

import argparse
import os
import signal
import sys
import textwrap
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

from aquamam import __version__
from aquamam.errors import InputError

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

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        """What an option's type says of a wrong value, where argparse would only name the type."""
        try:
            return super()._get_value(action, arg_string)  # type: ignore[misc]
        except argparse.ArgumentError as error:
            if isinstance(error.__context__, InputError):
                raise argparse.ArgumentError(action, str(error.__context__)) from None
            raise

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
        if os.environ.get("AQUAMAM_DEBUG"):
            raise
        print(f"aquamam: {error}", file=sys.stderr)
        return 2
