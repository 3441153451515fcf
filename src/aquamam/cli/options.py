"""One module for each command of `aquamam`; heavy imports wait inside `run`."""

import argparse


def seed(text: str) -> int:
    """A seed that every generator of random numbers here can take."""
    number = int(text) if text.strip().removeprefix("-").isdigit() else -1
    if not 0 <= number < 2**31:
        raise argparse.ArgumentTypeError(f"a seed is a whole number from 0 to {2**31 - 1}, got {text!r}")
    return number
