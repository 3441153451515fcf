"""What a training run leaves on disk besides its models: the state to go on from, and the log."""

import json
from pathlib import Path
from typing import Any

from torch import Tensor

from aquamam.checkpoints.checkpoint import load_tensors, save_tensors
from aquamam.errors import InputError
from aquamam.files import write_text

# settings that may change between two sessions without making it another run
FREE = {"threads", "checkpoint_seconds", "compile"}


class RunFolder:
    """state.safetensors, log.jsonl and, where TensorBoard is installed, its events; `identity` says which run it is."""

    def __init__(self, path: Path, identity: dict[str, Any]):
        self.path = path
        self.identity = json.loads(json.dumps(identity, default=str))
        self._board: Any = None

    def start(self) -> None:
        """Make room for a new run."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "log.jsonl").unlink(missing_ok=True)

    def save(self, tensors: dict[str, Tensor], progress: dict[str, Any]) -> None:
        """Write the state atomically."""
        save_tensors(self.path / "state.safetensors", tensors, {"identity": self.identity, "progress": progress})

    def load(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """The saved state if there is one; another run's is refused."""
        file = self.path / "state.safetensors"
        if not file.exists():
            return None
        tensors, description = load_tensors(file)
        there = description.get("identity", {})
        differ = [part for part in ("kind", "data") if there.get(part) != self.identity[part]]
        differ += [
            f"{part}.{key}"
            for part in ("model", "train")
            for key, value in self.identity[part].items()
            if key not in FREE and there.get(part, {}).get(key) != value
        ]
        if differ:
            raise InputError(
                f"{self.path} holds another run: {', '.join(differ[:3])} differ; use another folder, or the same settings to go on."
            )
        return tensors, description["progress"]

    def log(self, record: dict[str, Any]) -> None:
        """Append a line to log.jsonl, and scalars for TensorBoard."""
        with open(self.path / "log.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
        if self._board is None:
            try:
                from torch.utils.tensorboard import SummaryWriter
            except ImportError:  # optional: pip install aquamam[tensorboard]
                self._board = False
            else:
                self._board = SummaryWriter(str(self.path / "tensorboard"))
        if self._board:
            for name, value in record.items():
                if isinstance(value, float) and name != "elapsed":
                    self._board.add_scalar(name, value, record["step"])
            self._board.flush()

    def trim_log(self, step: int) -> None:
        """Drop lines of steps that a kill has undone, and a half-written last one."""
        path = self.path / "log.jsonl"
        if path.exists():
            lines = [
                line
                for line in path.read_text().splitlines()
                if line.endswith("}") and json.loads(line)["step"] <= step
            ]
            write_text(path, "".join(line + "\n" for line in lines))
