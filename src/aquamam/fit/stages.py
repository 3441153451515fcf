"""Work in stages: each leaves its result on disk with a fingerprint of what it came from, and is not done twice."""

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from aquamam.files import write_text

VERSION = 1  # of the results: another one does them anew


class Stages:
    """Results on disk, each with the fingerprint of its inputs."""

    def __init__(self, folder: Path):
        self.folder, self.seconds = folder, dict[str, float]()  # that each took

    def __call__(
        self, name: str, inputs: Any, make: Callable[[], dict[str, Any]], files: Sequence[Path] = ()
    ) -> dict[str, Any]:
        """The result of `make`, or the one on disk if it came from the same inputs and its files are still there."""
        text = json.dumps([VERSION, name, inputs], sort_keys=True, default=str)
        key = hashlib.sha256(text.encode()).hexdigest()
        path = self.folder / f"{name}.json"
        there = json.loads(path.read_text()) if path.exists() and all(file.exists() for file in files) else {}
        if there.get("key") != key:
            path.unlink(missing_ok=True)  # what follows may replace its files
            start = time.monotonic()
            result = make()
            seconds = round(time.monotonic() - start, 1)
            write_text(path, json.dumps({"key": key, "seconds": seconds, "result": result}))
            there = json.loads(path.read_text())  # as it will be next time
        self.seconds[name] = there["seconds"]
        return there["result"]
