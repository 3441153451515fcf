"""One module for each command of `aquamam`; heavy imports wait inside `run`."""

import argparse


def add_untextured(parser: argparse._ActionsContainer) -> None:
    """The option of commands that open mesh files."""
    parser.add_argument(
        "--untextured",
        action="store_true",
        help="leave out a mesh file's textures and colours, where they are missing, say",
    )


def seed(text: str) -> int:
    """A seed that every generator of random numbers here can take."""
    number = int(text) if text.strip().removeprefix("-").isdigit() else -1
    if not 0 <= number < 2**31:
        raise argparse.ArgumentTypeError(f"a seed is a whole number from 0 to {2**31 - 1}, got {text!r}")
    return number
