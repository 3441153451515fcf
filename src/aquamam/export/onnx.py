"""AQuaMaM as ONNX: one graph for an image, one for each later token of a rotation, and a JSON file that says what the tensors mean.

The encoder runs once an image and leaves each layer's keys and values behind; the decoder runs one token of any number of rotations against
them. `aquamam.export.runner` puts the posterior back on top.
"""

import hashlib
import inspect
import logging
import os
import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from aquamam import __version__
from aquamam.errors import InputError
from aquamam.export.runner import FORMAT, Files, OnnxModel
from aquamam.files import write_bytes, write_json
from aquamam.geometry.rotations import random_quat
from aquamam.network.layers import KeysValues
from aquamam.network.model import AQuaMaM

OPSET = 18


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

    Both steps share the graph: at step 0 there is no earlier token, and the slot for it is masked.
    """

    def __init__(self, model: AQuaMaM):
        super().__init__()
        self.model = model

    def forward(self, step: Tensor, chart: Tensor, component: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        model, layers = self.model, len(self.model.blocks)
        first = step == 0
        component = component / model.cells.chart.half_width
        x, later = (
            model.components[c](component) + model.position[c - 2]  # type: ignore[operator]
            for c in (0, 1)
        )
        x = torch.where(first, x, later)
        if model.cells.chart.count > 1:
            x = x + model.chart_embed(chart)
        mask = torch.where(first, -torch.inf, 0.0).expand(1, 1)  # the slot of the earlier token, which step 0 does not see
        mask = torch.cat([mask, torch.zeros(1, 1)], -1)
        x, own = x[:, :, None], []
        for i, block in enumerate(model.blocks):
            image, past = KeysValues(*states[2 * i : 2 * i + 2]), states[2 * layers + i][:, :, None]
            x, state = block.extend(x, image, past, mask)  # type: ignore[operator]
            own.append(state[:, :, -1])
        if model.cells.chart.count == 1:
            own[0] = own[0] + 0 * chart[..., None]  # an input that is not read would vanish from the graph
        state = model.norm(x)
        second, third = (model.later_logits(state, token)[:, :, 0] for token in (1, 2))
        return (torch.where(first, second, third), *own)


class Graph(NamedTuple):
    """A network with named inputs and outputs and an example of its inputs; shapes are words and numbers."""

    network: nn.Module
    inputs: dict[str, tuple[Tensor, list[str | int]]]
    outputs: dict[str, list[str | int]]

    def describe(self) -> dict[str, Any]:
        kinds = {torch.float32: "float32", torch.int64: "int64"}
        return {
            "inputs": [{"name": n, "type": kinds[t.dtype], "shape": shape} for n, (t, shape) in self.inputs.items()],
            "outputs": [{"name": n, "type": "float32", "shape": shape} for n, shape in self.outputs.items()],
        }


def graphs(model: AQuaMaM) -> tuple[Graph, Graph]:
    """Encoder and decoder of a model, ready to be written."""
    config, cells = model.config, model.cells
    batch, rotations = 2, 3  # any sizes but 0 and 1, which the tracer would take for constants
    layers = range(config.layers)
    cached: list[str | int] = ["batch", config.heads, config.prefix_tokens + 1, config.dim // config.heads]
    own: list[str | int] = ["batch", "rotations", 2 * config.dim]
    prefix = {f"{kind}_{i}": cached for i in layers for kind in ("key", "value")}
    if config.embedding == "category":
        entry: dict[str, tuple[Tensor, list[str | int]]] = {
            "category": (torch.zeros(batch, dtype=torch.long), ["batch"])
        }
    else:
        side = config.image_size
        entry = {"image": (torch.rand(batch, config.channels, side, side), ["batch", config.channels, side, side])}
    encoder = Graph(Encoder(model), entry, {"first_logits": ["batch", cells.first_tokens], **prefix})
    steps: dict[str, tuple[Tensor, list[str | int]]] = {
        "step": (torch.tensor(1), []),
        "chart": (torch.zeros(batch, rotations, dtype=torch.long), ["batch", "rotations"]),
        "component": (torch.zeros(batch, rotations), ["batch", "rotations"]),
        **{name: (_example(shape, batch, rotations), shape) for name, shape in prefix.items()},
        **{f"past_{i}": (_example(own, batch, rotations), own) for i in layers},
    }
    logits: list[str | int] = ["batch", "rotations", cells.bins]
    return encoder, Graph(Decoder(model), steps, {"logits": logits, **{f"own_{i}": own for i in layers}})


def _example(shape: list[str | int], batch: int, rotations: int) -> Tensor:
    sizes = {"batch": batch, "rotations": rotations}
    return torch.randn([sizes[n] if isinstance(n, str) else n for n in shape])


def export(model: nn.Module, path: str | os.PathLike[str]) -> Files:
    """Write NAME.encoder.onnx, NAME.decoder.onnx and NAME.json for a path NAME.onnx; the JSON comes last, so that it only names whole files."""
    if not isinstance(model, AQuaMaM):
        raise InputError(
            f"export takes a model of kind 'aquamam', got {getattr(model, 'kind', type(model).__name__)!r}."
        )
    files = Files.at(path)
    model = model.eval()
    description: dict[str, Any] = {
        "format": FORMAT,
        "aquamam": __version__,
        "kind": model.kind,
        "config": model.config.to_dict(),
        "calibration": model.calibration.to_dict(),
        "info": model.info,
        "conventions": conventions(model),
        "graphs": {},
    }
    for name, graph, file in zip(("encoder", "decoder"), graphs(model), (files.encoder, files.decoder)):
        blob = to_onnx(graph)
        write_bytes(file, blob)
        description["graphs"][name] = {
            "file": file.name,
            "sha256": hashlib.sha256(blob).hexdigest(),
            "opset": OPSET,
            **graph.describe(),
        }
    write_json(files.description, description)
    return files


def conventions(model: AQuaMaM) -> dict[str, Any]:
    """What a reader of the tensors has to know besides their shapes."""
    cells, chart = model.cells, model.cells.chart
    network_input = (
        f"category, a whole number from 0 to {model.config.categories - 1}"
        if model.config.embedding == "category"
        else "RGB in [0, 1], channels first, row 0 at the top; resized with antialiasing, never stretched: the short side is padded in "
        "the median colour of the border"
    )
    return {
        "input": network_input,
        "quaternion": "xyzw, unit, q_w >= 0",
        "rotation": "object to camera, x_cam = R x_obj; camera x right, y up, z towards the viewer",
        "log_density": "natural logarithm, with respect to a volume of pi^2 of all rotations (uniform = -2.2895)",
        "chart": chart.name,
        "dropped_component": list(chart.components),
        "peak": chart.peak,
        "half_width": chart.half_width,
        "bins": cells.bins,
        "bin_width": cells.width,
        "density": cells.density,
        "by_volume": cells.by_volume,
        "ceiling": cells.ceiling,
        "first_token": "chart * bins + bin of the first kept component",
        "bin_centre": "(2 bin + 1 - bins) / bins * half_width",
        "component": "what the decoder is shown: " + ("the bin's centre" if cells.density == "cells" else "the value"),
        "legal": "sum e^2 + peak * max e^2 < (1 + peak) * bins^2 over inner edges e = max(|2 bin + 1 - bins| - 1, 0)",
    }


def to_onnx(graph: Graph) -> bytes:
    """The graph as the bytes of an ONNX file, for any number of images and rotations."""
    try:
        import onnx
        import onnxscript  # noqa: F401
    except ImportError as error:
        raise InputError("export needs onnx and onnxscript; try pip install 'aquamam[export]'.") from error
    sizes = {name: torch.export.Dim(name, min=1) for name in ("batch", "rotations")}
    dynamic = [
        {axis: sizes[n] for axis, n in enumerate(shape) if isinstance(n, str)} for _, shape in graph.inputs.values()
    ]
    own = list(inspect.signature(graph.network.forward).parameters)  # the decoder's last one takes all cached states
    shapes: dict[str, Any] = dict(zip(own, dynamic))
    if len(dynamic) > len(own):
        shapes[own[-1]] = tuple(dynamic[len(own) - 1 :])
    log = logging.getLogger("torch.onnx._internal.exporter._registration")
    level = log.level
    log.setLevel(logging.ERROR)  # it warns of a missing torchvision, whose operators are not used
    try:
        with warnings.catch_warnings(), torch.no_grad():
            warnings.simplefilter("ignore")
            program = torch.onnx.export(
                graph.network,
                tuple(example for example, _ in graph.inputs.values()),
                input_names=list(graph.inputs),
                output_names=list(graph.outputs),
                dynamic_shapes=shapes,
                opset_version=OPSET,
                dynamo=True,
                external_data=False,
                verbose=False,
            )
    finally:
        log.setLevel(level)
    assert program is not None
    proto = program.model_proto
    # the exporter notes for every value which line of which file it came from: of no use elsewhere, and most of a small file
    del proto.graph.value_info[:], proto.graph.metadata_props[:]
    for part in (*proto.graph.node, *proto.graph.initializer, *proto.graph.input, *proto.graph.output):
        del part.metadata_props[:]
    onnx.checker.check_model(proto)
    return proto.SerializeToString()


def largest_difference(model: AQuaMaM, path: str | os.PathLike[str]) -> float:
    """The largest difference between log densities of a model and of its exported graphs, over a few random inputs and rotations."""
    generator = torch.Generator().manual_seed(0)
    config = model.config
    if config.embedding == "category":
        images = torch.randint(config.categories, (3,), generator=generator)
    else:
        images = torch.rand((3, config.channels, config.image_size, config.image_size), generator=generator)
    q = random_quat((16, 3), generator=generator)
    with torch.no_grad():
        mine, theirs = (posterior.log_prob(q) for posterior in (model(images), OnnxModel(path)(images)))
    return float((mine - theirs).abs().max())
