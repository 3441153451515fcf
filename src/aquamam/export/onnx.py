"""AQuaMaM as ONNX: a graph for an image, one for a later token of a rotation, and a JSON file that says what they mean.

The encoder runs once an image and leaves each layer's keys and values behind; the decoder runs one token of any number
of rotations against them. `aquamam.export.runner` puts the posterior back on top.
"""

import hashlib
import logging
import os
import tempfile
import warnings
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from aquamam import __version__
from aquamam.checkpoints.checkpoint import describe
from aquamam.errors import InputError
from aquamam.export.runner import FORMAT, OPSET, Files, OnnxModel, library
from aquamam.files import write_bytes, write_json
from aquamam.geometry.rotations import random_quat
from aquamam.network.layers import KeysValues
from aquamam.network.model import AQuaMaM, RotationModel

# it warns of a missing torchvision, whose operators are not used
logging.getLogger("torch.onnx._internal.exporter._registration").setLevel(logging.ERROR)


class Encoder(nn.Module):
    """Image -> logits of the first token, then keys and values of every layer."""

    def __init__(self, model: AQuaMaM):
        super().__init__()
        self.model = model

    def forward(self, image: Tensor) -> tuple[Tensor, ...]:
        model = self.model
        start, layers = model.encoded(image if model.config.embedding == "category" else image * 2 - 1)
        return (model.first_logits(start), *(tensor for layer in layers for tensor in layer))


class Decoder(nn.Module):
    """One token of each rotation -> logits of the next bin, then the token's own keys and values in every layer.

    All steps share the graph: there are slots for all earlier tokens, and those that are not there yet are masked.
    """

    def __init__(self, model: AQuaMaM):
        super().__init__()
        self.model = model

    def forward(self, step: Tensor, chart: Tensor, component: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        model, layers, later = self.model, len(self.model.blocks), self.model.config.later_tokens
        tokens = [model.embedded_rotations(chart, component[..., None], range(c, c + 1)) for c in range(later)]
        x = torch.stack(tokens).index_select(0, step.reshape(1))[0]
        unseen = torch.where(torch.arange(later - 1) < step, 0.0, -torch.inf)
        mask = torch.cat([unseen, torch.zeros(1)])[None]
        own = []
        for i, block in enumerate(model.blocks):
            image, past = KeysValues(*states[2 * i : 2 * i + 2]), states[2 * layers + i].unflatten(-1, (later - 1, -1))
            x, state = block.extend(x, image, past, mask)  # type: ignore[operator]
            own.append(state[:, :, -1])
        if model.cells.chart.count == 1:
            own[0] = own[0] + 0 * chart[..., None]  # an input that is not read would vanish from the graph
        state = model.norm(x)
        logits = torch.stack([model.later_logits(state, token)[:, :, 0] for token in range(1, later + 1)])
        return (logits.index_select(0, step.reshape(1))[0], *own)


# sizes that may vary; examples are any but 0 and 1, which the tracer would take for constants
EXAMPLE = {"batch": 2, "rotations": 3}
Tensors = list[dict[str, Any]]  # names, types and shapes, as the description has them


def tensors(kind: str, **shapes: list[str | int]) -> Tensors:
    return [{"name": name, "type": kind, "shape": shape} for name, shape in shapes.items()]


def graphs(model: AQuaMaM) -> dict[str, tuple[nn.Module, Tensors, Tensors]]:
    """Encoder and decoder of a model, with their inputs and outputs."""
    config, cells, layers = model.config, model.cells, range(model.config.layers)
    cached = ["batch", config.heads, config.prefix_tokens + 1, config.dim // config.heads]
    prefix: Any = {f"{kind}_{i}": cached for i in layers for kind in ("key", "value")}
    each: list[Any] = ["batch", "rotations"]
    own: Any = {f"own_{i}": [*each, 2 * config.dim] for i in layers}
    past: Any = {f"past_{i}": [*each, (config.later_tokens - 1) * 2 * config.dim] for i in layers}
    image = tensors("float32", image=["batch", config.channels, config.image_size, config.image_size])
    if config.embedding == "category":
        image = tensors("int64", category=["batch"])
    token = tensors("int64", step=[], chart=each) + tensors("float32", component=each, **prefix, **past)
    first = tensors("float32", first_logits=["batch", cells.first_tokens], **prefix)
    later = tensors("float32", logits=[*each, cells.bins], **own)
    return {"encoder": (Encoder(model), image, first), "decoder": (Decoder(model), token, later)}


def export(model: RotationModel, path: str | os.PathLike[str], *, int8: Tensor | None = None) -> Files:
    """Write NAME.encoder.onnx, NAME.decoder.onnx and, last, NAME.json for a path NAME.onnx.

    int8: typical images, for an encoder that computes in 8 bits, with ranges that hold what these bring about.
    """
    if not isinstance(model, AQuaMaM):
        raise InputError(f"ONNX graphs are made of models of kind 'aquamam', got {model.kind!r}; run it with torch.")
    files, told = Files.at(path), {}
    for (name, (network, inputs, outputs)), file in zip(graphs(model.eval()).items(), files):
        blob = to_onnx(network, inputs, outputs)
        if int8 is not None and name == "encoder":  # products of the decoder are small: 8 bits cost and do not pay
            blob = quantised(blob, inputs[0]["name"], int8)
        write_bytes(file, blob)
        about = {"file": file.name, "sha256": hashlib.sha256(blob).hexdigest(), "opset": OPSET}
        told[name] = {**about, "inputs": inputs, "outputs": outputs}
    about = {"format": FORMAT, "aquamam": __version__, **describe(model), "conventions": conventions(model)}
    write_json(files.description, {**about, "graphs": told})
    return files


def conventions(model: AQuaMaM) -> dict[str, Any]:
    """What a reader of the tensors has to know besides their shapes."""
    cells, chart = model.cells, model.cells.chart
    pixels = "RGB in [0, 1], channels first, row 0 at the top; resized with antialiasing, never stretched: the short "
    pixels += "side is padded in the median colour of the border"
    numbers = f"category, a whole number from 0 to {model.config.categories - 1}"
    return {
        "input": numbers if model.config.embedding == "category" else pixels,
        "quaternion": "xyzw, unit, q_w >= 0",
        "rotation": "object to camera, x_cam = R x_obj; camera x right, y up, z towards the viewer",
        "log_density": "natural logarithm, with respect to a volume of pi^2 of all rotations (uniform = -2.2895)",
        **{"chart": chart.name, "dropped_component": list(chart.components), "peak": chart.peak},
        **{"half_width": chart.half_width, "bins": cells.bins, "bin_width": cells.width, "density": cells.density},
        **{"by_volume": cells.by_volume, "ceiling": cells.ceiling},
        "first_token": "chart * bins + bin of the first kept component",
        "bin_centre": "(2 bin + 1 - bins) / bins * half_width",
        "component": "what the decoder is shown: " + ("the bin's centre" if cells.density == "cells" else "the value"),
        "legal": "sum e^2 + peak * max e^2 < (1 + peak) * bins^2 over inner edges e = max(|2 bin + 1 - bins| - 1, 0)",
    }


def to_onnx(network: nn.Module, inputs: Tensors, outputs: Tensors) -> bytes:
    """The network as the bytes of an ONNX file, for any number of images and rotations."""
    onnx, _ = map(library, ("onnx", "onnxscript"))
    sizes = {name: torch.export.Dim(name, min=1) for name in EXAMPLE}
    example = [torch.zeros([EXAMPLE.get(n, n) for n in t["shape"]], dtype=getattr(torch, t["type"])) for t in inputs]
    varying: list[Any] = [{i: sizes[n] for i, n in enumerate(t["shape"]) if n in sizes} for t in inputs]
    if len(inputs) > 1:  # the decoder's last parameter takes all cached states
        varying[3:] = [tuple(varying[3:])]
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        program = torch.onnx.export(
            network,
            tuple(example),
            input_names=[one["name"] for one in inputs],
            output_names=[one["name"] for one in outputs],
            dynamic_shapes=tuple(varying),
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    assert program is not None
    proto = program.model_proto
    # the exporter notes which line of which file every value came from: of no use elsewhere, most of a small file
    del proto.graph.value_info[:], proto.graph.metadata_props[:]
    for part in (*proto.graph.node, *proto.graph.initializer, *proto.graph.input, *proto.graph.output):
        del part.metadata_props[:]
    onnx.checker.check_model(proto)
    return proto.SerializeToString()


def quantised(blob: bytes, name: str, images: Tensor) -> bytes:
    """A graph whose convolutions and products run in 8 bits; the head, where rounding costs most, does not."""
    onnx, quantization = library("onnx"), library("onnxruntime.quantization")
    pixels = images.float().numpy() / (255 if images.dtype == torch.uint8 else 1)
    feeds = iter([{name: pixels[i : i + 16]} for i in range(0, len(pixels), 16)])
    with tempfile.TemporaryDirectory() as work:
        file = Path(work) / "int8.onnx"
        logging.disable(logging.WARNING)  # of a preparation that folds norms, which the exporter has folded
        try:
            reader: Any = SimpleNamespace(get_next=partial(next, feeds, None))
            types = {"op_types_to_quantize": ["Conv", "MatMul"], "weight_type": quantization.QuantType.QInt8}
            quantization.quantize_static(onnx.load_from_string(blob), file, reader, per_channel=True, **types)
        finally:
            logging.disable(logging.NOTSET)
        return file.read_bytes()


@torch.no_grad()
def difference(model: AQuaMaM, path: str | os.PathLike[str], images: Tensor, q: Tensor) -> Tensor:
    """Log densities of a model's graphs less those of the model, for rotations q (*S, B, 4) of images (B, ...)."""
    return OnnxModel(path)(images).log_prob(q) - model(images).log_prob(q)


def largest_difference(model: AQuaMaM, path: str | os.PathLike[str]) -> float:
    """The largest difference between log densities of a model and of its graphs, over a few random inputs."""
    config, generator = model.config, torch.Generator().manual_seed(0)
    if config.embedding == "category":
        images = torch.randint(config.categories, (3,), generator=generator)
    else:
        images = torch.rand((3, config.channels, config.image_size, config.image_size), generator=generator)
    return float(difference(model, path, images, random_quat((16, 3), generator=generator)).abs().max())
