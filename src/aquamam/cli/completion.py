"""Print a script with which a shell completes aquamam's commands, options, choices and files.

source <(aquamam completion bash)        now; for every shell, put this line into ~/.bashrc
source <(aquamam completion zsh)         in ~/.zshrc, after compinit
aquamam completion fish > ~/.config/fish/completions/aquamam.fish
"""

import argparse
from pathlib import Path

import shtab

from aquamam.cli.main import build_parser

FILES = ("FILE", "PNG", "CSV", "PATH", "IMAGE", "NAME.onnx", "MODEL", "[NAME=]MODEL", "OBJECT")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=shtab.SUPPORTED_SHELLS, help="the shell to write for")


def run(args: argparse.Namespace) -> None:
    parsers = [build_parser()]
    for parser in parsers:  # which grows by the commands of each
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                parsers += action.choices.values()
            elif action.metavar == "DIR":
                action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
            elif action.type is Path or action.metavar in FILES:
                action.complete = shtab.FILE  # type: ignore[attr-defined]
    print(shtab.complete(parsers[0], args.shell))
