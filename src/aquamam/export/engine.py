"""Which engine runs a network: torch, or onnxruntime with the graphs of an export. The posterior is the same to
rounding."""

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

import torch

from aquamam import __version__
from aquamam.checkpoints import checkpoint
from aquamam.errors import InputError
from aquamam.export.onnx import OPSET, export
from aquamam.export.runner import FORMAT, OnnxModel, onnxruntime
from aquamam.network.model import RotationModel

ENGINES = ("torch", "onnx")


def load(
    name_or_path: str | os.PathLike[str], *, device: str | torch.device = "cpu", engine: str = "torch"
) -> RotationModel:
    """A model in evaluation mode from a bundled name, a checkpoint's path, or NAME.onnx as `aquamam export` wrote it.

    engine: "torch", or "onnx" for onnxruntime on the CPU. The first load of a checkpoint by onnxruntime makes its
    graphs, which takes seconds, and keeps them in XDG_CACHE_HOME/aquamam.
    """
    if engine not in ENGINES:
        raise InputError(f"engine must be {' or '.join(ENGINES)}, got {engine!r}.")
    exported = os.fspath(name_or_path).endswith((".onnx", ".json"))
    if engine == "torch" and not exported:
        return checkpoint.load(name_or_path, device=device)
    if torch.device(device).type != "cpu":
        raise InputError(f"onnxruntime runs models on the CPU here, got device {device}; try cpu, or engine torch.")
    return OnnxModel(name_or_path) if exported else _cached(checkpoint.resolve(name_or_path))


def _cached(file: Path) -> OnnxModel:
    """The graphs of a checkpoint from the cache, or made now; a damaged copy is made again."""
    onnxruntime()  # told before seconds of work
    key = hashlib.sha256(f"{FORMAT} {OPSET} {__version__}".encode() + file.read_bytes()).hexdigest()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aquamam" / key
    try:
        model = OnnxModel(folder / "model.onnx")
    except InputError:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent) as work:
                export(checkpoint.load(file), Path(work) / "graphs" / "model.onnx")
                with contextlib.suppress(OSError):  # another process was faster
                    os.rename(Path(work) / "graphs", folder)
        except OSError as error:
            reason = error.strerror or error
            raise InputError(
                f"{folder.parent} cannot be written ({reason}); set XDG_CACHE_HOME to a folder."
            ) from error
        model = OnnxModel(folder / "model.onnx")
    model.source = file
    return model
