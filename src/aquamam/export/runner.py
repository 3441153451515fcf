"""An exported model without its network: onnxruntime tells the logits, and the posterior is the same class as ever."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from aquamam.checkpoints.format import modernised
from aquamam.errors import InputError
from aquamam.network.images import ImageInput, as_categories, as_image_batch
from aquamam.network.model import ModelConfig, RotationModel
from aquamam.posterior.calibration import Calibration
from aquamam.posterior.sentences import QuaternionSentences

FORMAT = "aquamam-onnx-1"


class Files(NamedTuple):
    """The three files of an exported model."""

    encoder: Path
    decoder: Path
    description: Path

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> "Files":
        """The files that NAME.onnx, NAME.json or NAME.encoder.onnx stand for."""
        path = Path(path)
        if path.suffix not in (".onnx", ".json"):
            raise InputError(
                f"an exported model's name ends in .onnx, got {path.name!r}; try {path.name or 'model'}.onnx."
            )
        stem = path.name.removesuffix(path.suffix).removesuffix(".encoder").removesuffix(".decoder")
        return cls(*(path.with_name(stem + end) for end in (".encoder.onnx", ".decoder.onnx", ".json")))


class OnnxModel(RotationModel):
    """`model(images)` is the posterior of the exported model: the same interface, the same numbers to rounding."""

    kind = "aquamam"

    def __init__(self, path: str | os.PathLike[str], *, threads: int = 0):
        """path: NAME.onnx as it was given to `aquamam export`. threads: 0 takes as many as torch does."""
        super().__init__()
        files = Files.at(path)
        description = modernised(read_description(files))
        self.config = ModelConfig.from_dict(description["config"])
        # the graphs' logits are divided by the temperatures already
        self.calibration = Calibration.from_dict(description.get("calibration", {}))
        self.learn(**description.get("info", {}))
        self.cells, self.source = self.config.cells, files.description
        self.encoder, self.decoder = (
            _session(file, description["graphs"][name], threads or torch.get_num_threads())
            for name, file in (("encoder", files.encoder), ("decoder", files.decoder))
        )
        self.eval()

    def posterior(self, images: ImageInput) -> QuaternionSentences:
        return QuaternionSentences(self.encode(images), self.cells)

    def encode(self, images: ImageInput) -> "OnnxPrefix":
        """Run the encoder once for these images."""
        batch = self.prepare(images).numpy()
        fed = batch if len(batch) else np.zeros((1, *batch.shape[1:]), batch.dtype)  # onnxruntime takes no empty batch
        first, *states = (out[: len(batch)] for out in self.encoder.run(None, {self.encoder.get_inputs()[0].name: fed}))
        return OnnxPrefix(self, first, states)

    def prepare(self, images: ImageInput) -> Tensor:
        """What the encoder's graph reads: float32 (B, channels, H, W) in [0, 1], or int64 categories (B,)."""
        config = self.config
        if config.embedding == "category":
            return as_categories(images, config.categories).cpu()
        batch = as_image_batch(images, channels=config.channels, size=(config.image_size, config.image_size)).cpu()
        return (batch.float() / 255 if batch.dtype == torch.uint8 else batch.float()).contiguous()


class OnnxPrefix:
    """Encoded images: the conditionals of the posterior, from onnxruntime."""

    def __init__(self, model: OnnxModel, first: np.ndarray, states: list[np.ndarray]):
        self.model = model
        self.first_logits = first
        self.states = states
        self.batch = len(first)
        config = model.config
        self.row_floats = 2 * (3 * config.heads * (config.prefix_tokens + 3) + 2 * config.hidden + 10 * config.dim)

    def some(self, images: Tensor | slice) -> "OnnxPrefix":
        rows = images if isinstance(images, slice) else images.numpy()
        return OnnxPrefix(self.model, self.first_logits[rows], [state[rows] for state in self.states])

    def first(self) -> Float[Tensor, "batch first_tokens"]:
        return torch.from_numpy(self.first_logits)

    def rest(
        self,
        chart: Int[Tensor, "rotations batch"],
        seen: Float[Tensor, "rotations batch steps"],
        past: tuple[Tensor, ...] = (),
    ) -> tuple[Float[Tensor, "rotations batch steps bins"], tuple[Tensor, ...]]:
        config, (rotations, batch, steps) = self.model.config, seen.shape
        if rotations * batch == 0:
            own = tuple(seen.new_zeros((rotations, batch, 2 * config.dim)) for _ in range(config.layers))
            return seen.new_zeros((*seen.shape, config.bins)), own
        names = [f"{kind}_{i}" for i in range(config.layers) for kind in ("key", "value")]
        feed = {"chart": _images_first(chart), **dict(zip(names, self.states))}
        nothing = np.zeros((batch, rotations, 2 * config.dim), np.float32)
        states = [_images_first(state) for state in past] or [nothing] * config.layers
        logits = []
        for i in range(steps):
            feed |= {"step": np.array(i + bool(past)), "component": _images_first(seen[..., i])}
            feed |= {f"past_{layer}": state for layer, state in enumerate(states)}
            out, *states = self.model.decoder.run(None, feed)
            logits.append(torch.from_numpy(out).transpose(0, 1))
        return torch.stack(logits, 2), tuple(torch.from_numpy(state).transpose(0, 1) for state in states)


def _images_first(x: Tensor) -> np.ndarray:
    """The posterior has rotations first, the graphs have images first: all rotations of an image are then one
    matrix."""
    return np.ascontiguousarray(x.detach().transpose(0, 1).cpu().numpy())


def read_description(files: Files) -> dict[str, Any]:
    """The JSON of an exported model."""
    if not files.description.is_file():
        raise InputError(f"an exported model has a description, and there is none at {files.description}.")
    try:
        description = json.loads(files.description.read_text())
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise InputError(f"{files.description} is not JSON; export the model again.") from error
    if not isinstance(description, dict) or description.get("format") != FORMAT:
        raise InputError(f"{files.description} does not describe an exported model (format {FORMAT!r}).")
    return description


def onnxruntime() -> Any:
    """The library, or one sentence."""
    try:
        import onnxruntime
    except ImportError as error:
        raise InputError("running ONNX graphs needs onnxruntime; try pip install 'aquamam[export]'.") from error
    return onnxruntime


def _session(path: Path, graph: dict[str, Any], threads: int) -> Any:
    runtime = onnxruntime()
    try:
        blob = path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"the exported model has no graph at {path}; keep its three files together.") from None
    if hashlib.sha256(blob).hexdigest() != graph["sha256"]:
        raise InputError(f"{path} is not the graph that its description names; export the model again.")
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    return runtime.InferenceSession(blob, options, providers=["CPUExecutionProvider"])
