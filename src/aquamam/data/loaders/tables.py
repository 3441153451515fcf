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
            rows = [row for row in csv.reader(file) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        raise InputError(f"{path} must be a CSV file in UTF-8, got: {error}.") from None
    if not rows:
        raise InputError(f"{path} is empty; its first line must name the columns.")
    header = [name.strip() for name in rows[0]]
    if twice := [name for name in header if header.count(name) > 1]:
        raise InputError(f"columns of {path} must have different names, got {twice[0]!r} twice.")
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            raise InputError(f"line {number} of {path} must have {len(header)} fields like its header, got {len(row)}.")
    return {name: [row[k].strip() for row in rows[1:]] for k, name in enumerate(header)}


def numbers(
    table: Table, columns: Sequence[str], path: Path, count: int | None = None
) -> Float64[np.ndarray, "rows columns"]:
    """These columns as finite numbers; a single column may hold `count` numbers with spaces between."""
    rows = []
    for line, texts in enumerate(zip(*(table[name] for name in columns)), start=2):
        names = columns
        if len(columns) == 1 and count is not None:
            names, pieces = [*columns] * count, texts[0].replace(",", " ").replace(";", " ").strip("[]() ").split()
            if len(pieces) != count:
                where = f"line {line} of {path} must have {count} numbers in column {columns[0]!r}"
                raise InputError(f"{where}, got {len(pieces)}: {texts[0]!r}.")
            texts = tuple(pieces)
        for name, text in zip(names, texts):
            if not is_number(text):
                raise InputError(f"line {line} of {path} must have a finite number in column {name!r}, got {text!r}.")
        rows.append([float(text) for text in texts])
    return np.array(rows, np.float64)


def is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
