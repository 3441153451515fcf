"""What a training run counts, and what it leaves on disk besides its models: the state to go on from, and the log."""

import json
import math
from collections.abc import Collection
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from torch import Tensor

from aquamam.checkpoints.checkpoint import load_tensors, save_tensors
from aquamam.errors import InputError
from aquamam.files import write_text

# settings that may change between two sessions without making it another run
FREE = {"threads", "checkpoint_seconds", "compile"}


@dataclass
class Progress:
    """What a run's state holds besides tensors."""

    step: int = 0
    elapsed: float = 0.0  # seconds of training, over all sessions
    images: int = 0
    skipped: int = 0
    best: float = -math.inf  # best validation log-likelihood
    bad_epochs: int = 0  # plateau: epochs since the last improvement
    halvings: int = 0
    idle_halvings: int = 0  # plateau: halvings in a row without an improvement
    finished: bool = False
    skipped_names: list[str] = field(default_factory=list)
    inherited: dict[str, Any] = field(default_factory=dict)  # from the model that the run started from

    def improved(self, log_likelihood: float) -> bool:
        """Note a validation."""
        if log_likelihood > self.best:
            self.best, self.bad_epochs, self.idle_halvings = log_likelihood, 0, 0
            return True
        self.bad_epochs += 1
        return False

    def halve(self) -> bool:
        """Halve the learning rate; whether that was for the second time without an improvement."""
        self.bad_epochs, self.halvings, self.idle_halvings = 0, self.halvings + 1, self.idle_halvings + 1
        return self.idle_halvings >= 2


class RunFolder:
    """state.safetensors, log.jsonl and, where TensorBoard is installed, its events; `identity` says which run it is."""

    def __init__(self, path: Path, identity: dict[str, Any]):
        self.path, self.identity = path, identity

    def save(self, tensors: dict[str, Tensor], progress: Progress) -> None:
        description = {"identity": self.identity, "progress": asdict(progress)}
        save_tensors(self.path / "state.safetensors", tensors, description)

    def load(self) -> tuple[dict[str, Tensor], Progress] | None:
        """The saved state if there is one; another run's is refused."""
        file = self.path / "state.safetensors"
        if not file.exists():
            return None
        tensors, description = load_tensors(file)
        if differ := differences(self.identity, description.get("identity", {}), FREE):
            hint = "use another folder, or the same settings to go on"
            raise InputError(f"{self.path} holds another run: {', '.join(differ[:3])} differ; {hint}.")
        known = {field.name for field in fields(Progress)}  # older versions counted more
        return tensors, Progress(**{name: value for name, value in description["progress"].items() if name in known})

    def log(self, record: dict[str, Any]) -> None:
        """Append a line to log.jsonl, and scalars for TensorBoard."""
        with open(self.path / "log.jsonl", "a") as file:
            file.write(json.dumps(record) + "\n")
        if self.board is not None:
            for name, value in record.items():
                if isinstance(value, float) and name != "elapsed":
                    self.board.add_scalar(name, value, record["step"])
            self.board.flush()

    @cached_property
    def board(self) -> Any:
        """What writes TensorBoard's events; None where it is not installed."""
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            return None
        return SummaryWriter(str(self.path / "tensorboard"))

    def trim_log(self, step: int) -> None:
        """Drop lines of steps that a kill has undone, and a half-written last one; at step 0 make room for a new
        run."""
        self.path.mkdir(parents=True, exist_ok=True)
        path = self.path / "log.jsonl"
        lines = path.read_text().splitlines() if path.exists() and step else []
        kept = [line for line in lines if line.endswith("}") and json.loads(line)["step"] <= step]
        write_text(path, "".join(line + "\n" for line in kept))


def differences(mine: dict[str, Any], there: dict[str, Any], free: Collection[str] = ()) -> list[str]:
    """Names of the settings that two runs do not share; fields that an older version did not have yet may differ."""
    found = []
    for key, value in mine.items():
        other = there.get(key)
        if isinstance(value, dict) and isinstance(other, dict):
            found += [f"{key}.{n}" for n in value if n not in free and n in other and other[n] != value[n]]
        elif other != value:
            found.append(key)
    return found
