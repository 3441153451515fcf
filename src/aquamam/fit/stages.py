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
        self.folder = folder

    def __call__(
        self, name: str, inputs: Any, make: Callable[[], dict[str, Any]], files: Sequence[Path] = ()
    ) -> dict[str, Any]:
        """The result of `make`, or the one on disk if it came from the same inputs and its files are still there."""
        text = json.dumps([VERSION, name, inputs], sort_keys=True, default=str)
        key = hashlib.sha256(text.encode()).hexdigest()
        path = self.folder / f"{name}.json"
        if path.exists() and all(file.exists() for file in files):
            try:
                there = json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                there = {}
            if there.get("key") == key:
                return there["result"]
        path.unlink(missing_ok=True)  # what follows may replace its files
        start = time.monotonic()
        result = make()
        seconds = round(time.monotonic() - start, 1)
        write_text(path, json.dumps({"key": key, "seconds": seconds, "result": result}))
        return json.loads(json.dumps(result))  # as it will be next time

    def seconds(self) -> dict[str, float]:
        """How long each stage took."""
        found = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(self.folder.glob("*.json"))}
        return {name: one["seconds"] for name, one in found.items() if "seconds" in one}
