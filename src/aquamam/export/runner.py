"""Models to run: by torch, or by onnxruntime with the graphs of an export.

An exported model has no network: onnxruntime tells the logits, and the posterior is the same class as ever.
"""

import hashlib
import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from aquamam import __version__
from aquamam.checkpoints import checkpoint
from aquamam.errors import InputError, require
from aquamam.network.images import ImageInput, as_categories, as_image_batch
from aquamam.network.model import ModelConfig, RotationModel
from aquamam.posterior.calibration import Calibration
from aquamam.posterior.sentences import QuaternionSentences

FORMAT, OPSET = "aquamam-onnx-1", 18
ENGINES = ("torch", "onnx")
EXPORTED = (".onnx", ".json")  # endings of names that stand for an exported model


def load(
    name_or_path: str | os.PathLike[str], *, device: str | torch.device = "cpu", engine: str = "torch"
) -> RotationModel:
    """A model in evaluation mode from a bundled name, a checkpoint's path, or NAME.onnx as `aquamam export` wrote it.

    engine: "torch", or "onnx" for onnxruntime on the CPU. The first load of a checkpoint by onnxruntime makes its
    graphs, which takes seconds, and keeps them in XDG_CACHE_HOME/aquamam.
    """
    require(engine in ENGINES, f"engine must be {' or '.join(ENGINES)}, got {engine!r}.")
    exported = os.fspath(name_or_path).endswith(EXPORTED)
    if engine == "torch" and not exported:
        return checkpoint.load(name_or_path, device=device)
    sentence = f"onnxruntime runs models on the CPU here, got device {device}; try cpu, or engine torch."
    require(str(device).startswith("cpu"), sentence)
    return OnnxModel(name_or_path) if exported else _cached(checkpoint.resolve(name_or_path))


def _cached(file: Path) -> "OnnxModel":
    """The graphs of a checkpoint from the cache, or made now; a damaged copy is made again."""
    from aquamam.export.onnx import export  # which imports this module

    library("onnxruntime")  # told before seconds of work
    key = hashlib.sha256(f"{FORMAT} {OPSET} {__version__}".encode() + file.read_bytes()).hexdigest()
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "aquamam" / key
    try:
        model = OnnxModel(folder / "model.onnx")
    except InputError:  # files are written whole, the description last, and equally by every process
        try:
            folder.mkdir(parents=True, exist_ok=True)
            export(checkpoint.load(file), folder / "model.onnx")
        except OSError as error:
            told = f"{folder.parent} cannot be written ({error.strerror or error})"
            raise InputError(f"{told}; set XDG_CACHE_HOME to a folder.") from error
        model = OnnxModel(folder / "model.onnx")
    model.source = file
    return model


class Files(NamedTuple):
    """The three files of an exported model."""

    encoder: Path
    decoder: Path
    description: Path

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> "Files":
        """The files that NAME.onnx, NAME.json or NAME.encoder.onnx stand for."""
        path = Path(path)
        hint = f"try {path.name or 'model'}.onnx"
        require(path.suffix in EXPORTED, f"an exported model's name ends in .onnx, got {path.name!r}; {hint}.")
        stem = path.name.removesuffix(path.suffix).removesuffix(".encoder").removesuffix(".decoder")
        return cls(*(path.with_name(stem + end) for end in (".encoder.onnx", ".decoder.onnx", ".json")))


class OnnxModel(RotationModel):
    """`model(images)` is the posterior of the exported model: the same interface, the same numbers to rounding."""

    kind = "aquamam"

    def __init__(self, path: str | os.PathLike[str], *, threads: int = 0):
        """path: NAME.onnx as it was given to `aquamam export`. threads: 0 takes as many as torch does."""
        super().__init__()
        files = Files.at(path)
        told = files.description
        try:
            description = json.loads(told.read_text())
        except OSError:
            raise InputError(f"an exported model has a description, and there is none at {told}.") from None
        except (ValueError, RecursionError) as error:
            raise InputError(f"{told} is not JSON; export the model again.") from error
        ours = isinstance(description, dict) and description.get("format") == FORMAT
        whole = ours and {"config", "graphs"} <= description.keys()
        require(whole, f"{told} does not describe an exported model (format {FORMAT!r}).")
        description = checkpoint.modernised(description)
        self.config = ModelConfig.from_dict(description["config"])
        # the graphs' logits are divided by the temperatures already
        self.calibration = Calibration.from_dict(description.get("calibration", {}))
        self.learn(**description.get("info", {}))
        self.cells, self.source = self.config.cells, told
        threads, graphs = threads or torch.get_num_threads(), description["graphs"]
        self.encoder = _session(files.encoder, graphs["encoder"]["sha256"], threads)
        self.decoder = _session(files.decoder, graphs["decoder"]["sha256"], threads)
        self.eval()

    def posterior(self, images: ImageInput) -> QuaternionSentences:
        return QuaternionSentences(self.encode(images), self.cells)

    def encode(self, images: ImageInput) -> "OnnxPrefix":
        """Run the encoder once for these images: float32 in [0, 1], or int64 categories."""
        config = self.config
        if config.embedding == "category":
            batch = as_categories(images, config.categories).cpu().numpy()
        else:
            pixels = as_image_batch(images, channels=config.channels, size=(config.image_size, config.image_size)).cpu()
            pixels = pixels.float() / 255 if pixels.dtype == torch.uint8 else pixels.float()
            batch = pixels.contiguous().numpy()
        fed = batch if len(batch) else np.zeros((1, *batch.shape[1:]), batch.dtype)  # onnxruntime takes no empty batch
        first, *states = (out[: len(batch)] for out in self.encoder.run(None, {self.encoder.get_inputs()[0].name: fed}))
        return OnnxPrefix(self, first, states)


class OnnxPrefix:
    """Encoded images: the conditionals of the posterior, from onnxruntime."""

    def __init__(self, model: OnnxModel, first: np.ndarray, states: list[np.ndarray]):
        self.model, self.first_logits, self.states, self.batch = model, first, states, len(first)
        config = model.config
        self.row_floats = 2 * (3 * config.heads * (config.prefix_tokens + 3) + 2 * config.hidden + 10 * config.dim)

    def some(self, images: Tensor | slice) -> "OnnxPrefix":
        rows = images if isinstance(images, slice) else images.numpy()
        return OnnxPrefix(self.model, self.first_logits[rows], [state[rows] for state in self.states])

    @property
    def image_state(self) -> Float[Tensor, "batch dim"]:
        """The mean value that the last layer keeps of an image's tokens."""
        return torch.from_numpy(self.states[-1]).mean(2).flatten(1)

    def first(self) -> Float[Tensor, "batch first_tokens"]:
        return torch.from_numpy(self.first_logits)

    def rest(
        self,
        chart: Int[Tensor, "rotations batch"],
        seen: Float[Tensor, "rotations batch steps"],
        past: tuple[Tensor, ...] = (),
    ) -> tuple[Float[Tensor, "rotations batch steps bins"], tuple[Tensor, ...]]:
        config, (rotations, batch, steps) = self.model.config, seen.shape
        done, slots = past[0].shape[2] if past else 0, config.later_tokens - 1
        if rotations * batch == 0:
            own = tuple(seen.new_zeros((rotations, batch, done + steps, 2 * config.dim)) for _ in range(config.layers))
            return seen.new_zeros((*seen.shape, config.bins)), own
        names = [f"{kind}_{i}" for i in range(config.layers) for kind in ("key", "value")]
        feed = {"chart": _images_first(chart), **dict(zip(names, self.states))}
        # keys and values of tokens so far, and room for all that will be read
        states = np.zeros((config.layers, batch, rotations, slots + 1, 2 * config.dim), np.float32)
        for layer, state in enumerate(past):
            states[layer, :, :, :done] = _images_first(state)
        logits = []
        for i in range(steps):
            feed |= {"step": np.array(done + i), "component": _images_first(seen[..., i])}
            feed |= {f"past_{n}": state[:, :, :slots].reshape(batch, rotations, -1) for n, state in enumerate(states)}
            out, *own_states = self.model.decoder.run(None, feed)
            states[:, :, :, done + i] = own_states
            logits.append(torch.from_numpy(out).transpose(0, 1))
        kept = torch.from_numpy(states[..., : done + steps, :]).transpose(1, 2)
        return torch.stack(logits, 2), tuple(kept)


def _images_first(x: Tensor) -> np.ndarray:
    """The posterior has rotations first, the graphs images: all rotations of an image are then one matrix."""
    return np.ascontiguousarray(x.detach().transpose(0, 1).cpu().numpy())


def library(name: str, extra: str = "export") -> Any:
    """An optional library, or one sentence."""
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(f"this needs {name}, which is not installed; try pip install 'aquamam[{extra}]'.") from error


def _session(path: Path, digest: str, threads: int) -> Any:
    runtime = library("onnxruntime")
    try:
        blob = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"the exported model has no graph at {path}; keep its three files together.") from None
    same = hashlib.sha256(blob).hexdigest() == digest
    require(same, f"{path} is not the graph that its description names; export the model again.")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return runtime.InferenceSession(blob, options, providers=["CPUExecutionProvider"])
