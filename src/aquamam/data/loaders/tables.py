"""CSV files as columns of text, and columns of text as numbers, with sentences that name file, line and column."""

import csv
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from jaxtyping import Float64

from aquamam.errors import InputError

Table = dict[str, list[str]]


def read_table(path: Path) -> Table:
    """Columns by name; the first line names them."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            rows = list(csv.reader(file))
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} must be a CSV file in UTF-8, got: {error}.") from None
    rows = [row for row in rows if row]
    if not rows:
        raise InputError(f"{path} is empty; its first line must name the columns.")
    header = [name.strip() for name in rows[0]]
    if len(set(header)) < len(header):
        twice = next(name for name in header if header.count(name) > 1)
        raise InputError(f"columns of {path} must have different names, got {twice!r} twice.")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise InputError(f"line {number} of {path} must have {len(header)} fields like its header, got {len(row)}.")
    return {name: [row[k].strip() for row in rows[1:]] for k, name in enumerate(header)}


def numbers(table: Table, columns: Sequence[str], path: Path) -> Float64[np.ndarray, "rows columns"]:
    """These columns as finite numbers."""
    out = np.empty((len(table[columns[0]]), len(columns)))
    for k, name in enumerate(columns):
        for row, text in enumerate(table[name]):
            out[row, k] = number(text, row, name, path)
    return out


def packed_numbers(table: Table, column: str, count: int, path: Path) -> Float64[np.ndarray, "rows columns"]:
    """One column whose fields hold `count` numbers with spaces between."""
    out = np.empty((len(table[column]), count))
    for row, text in enumerate(table[column]):
        pieces = text.replace(",", " ").replace(";", " ").strip("[]() ").split()
        if len(pieces) != count:
            raise InputError(
                f"line {row + 2} of {path} must have {count} numbers in column {column!r}, got {len(pieces)}: {text!r}."
            )
        out[row] = [number(piece, row, column, path) for piece in pieces]
    return out


def number(text: str, row: int, column: str, path: Path) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"line {row + 2} of {path} must have a finite number in column {column!r}, got {text!r}.")
    return value
