"""Files that are written whole or not at all, and JSON without NaN or infinity."""

import glob
import json
import math
import os
import tempfile
from pathlib import Path
from typing import Any


def write_bytes(path: str | os.PathLike[str], blob: bytes | memoryview) -> Path:
    """Write a file atomically: a reader sees the old file or the new one, never half of one.

    Whoever writes a file owns it, so what a killed process left of the same write goes away.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    for leftover in path.parent.glob(f".{glob.escape(path.name)}.*.tmp"):
        leftover.unlink(missing_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(blob)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)  # mkstemp's 0600 would hide a shared file from its readers
        os.replace(temporary, path)
    except FileNotFoundError:
        return write_bytes(path, blob)  # another process writes the same file and took this one for a leftover
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write UTF-8 text atomically."""
    return write_bytes(path, text.encode())


def write_json(path: str | os.PathLike[str], value: Any, indent: int | None = 1) -> Path:
    """Write a value as JSON atomically; numbers that are not finite become null."""
    return write_text(path, json.dumps(finite(value), indent=indent, allow_nan=False) + "\n")


def finite(value: Any) -> Any:
    """The value with None for numbers that are not finite, for which JSON has no word."""
    if isinstance(value, dict):
        return {key: finite(v) for key, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [finite(v) for v in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
