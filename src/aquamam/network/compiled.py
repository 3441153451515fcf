"""A model compiled for this machine: torch fuses what lies between its matrix products and packs their weights once.

It pays where pictures come one at a time and for long: the first picture of each batch size waits for a C++ compiler. The posterior is the
same class as ever, and the numbers are the same to rounding.
"""

import copy
import shutil
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from aquamam.network import onepass
from aquamam.posterior.distribution import carry_knowledge
from aquamam.errors import InputError
from aquamam.network.images import ImageInput
from aquamam.network.layers import KeysValues, normalise
from aquamam.network.model import AQuaMaM, Prefix
from aquamam.posterior.sentences import QuaternionSentences


def compiled(model: nn.Module) -> "Compiled":
    """`model` (AQuaMaM, on the CPU) for many pictures, its weights as they are now: later changes of `model` do not reach it."""
    if not isinstance(model, AQuaMaM):
        raise InputError(
            f"only AQuaMaM models can be compiled, got {getattr(model, 'kind', type(model).__name__)}; leave it as it is."
        )
    if model.start.device.type != "cpu":
        raise InputError(f"models are compiled for the CPU, this one is on {model.start.device}; try model.cpu().")
    if not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise InputError(
            "compiling needs a C++ compiler, and none of c++, g++ and clang++ was found; try apt install g++."
        )
    return Compiled(model)


class Compiled(nn.Module):
    """`compiled` makes it."""

    def __init__(self, model: AQuaMaM):
        super().__init__()
        self.model = model = copy.deepcopy(model).eval().requires_grad_(False)
        self.kind, self.config, self.cells = model.kind, model.config, model.cells
        self.info: dict[str, Any] = {**getattr(model, "info", {})}
        self.symmetry, self.alike = getattr(model, "symmetry", None), getattr(model, "alike", None)
        self.encoder, self.token = _Frozen(_Encoder(model)), _Frozen(_Token(model))

    def forward(self, images: ImageInput) -> QuaternionSentences:
        prepared = self.model.prepare(images)
        if not len(prepared):
            return self.model(images)
        start, layers = self.encoded(prepared if self.config.embedding == "category" else normalise(prepared))
        posterior = QuaternionSentences(CompiledPrefix(self, layers, start), self.cells)
        carry_knowledge(self, images, posterior)
        return posterior

    def encoded(self, images: Tensor) -> tuple[Float[Tensor, "batch dim"], list[KeysValues]]:
        """As the model's; large encoders have machine code of their own already (`onepass`)."""
        if onepass.suits(self.model.blocks, self.config.prefix_tokens + 1):
            with torch.inference_mode(False), torch.no_grad():  # or keys and values would be copied for every token
                return self.model.encoded(images)
        start, *states = self.encoder(images)
        return start, [KeysValues(*states[i : i + 2]) for i in range(0, len(states), 2)]


class CompiledPrefix(Prefix):
    """Encoded images; one token of one rotation each goes through the compiled layers, all else through the others."""

    def __init__(self, looking: Compiled, layers: list[KeysValues], start: Float[Tensor, "batch dim"]):
        super().__init__(looking.model, layers, start)
        self.looking = looking

    def some(self, images: Tensor | slice) -> "CompiledPrefix":
        return CompiledPrefix(
            self.looking, [KeysValues(k[images], v[images]) for k, v in self.layers], self.start[images]
        )

    def extended(
        self, x: Float[Tensor, "batch rotations steps dim"], past: tuple[Tensor, ...]
    ) -> tuple[Float[Tensor, "batch rotations steps dim"], list[Tensor]]:
        if x.shape[1] != 1 or x.shape[2] != 1:
            return super().extended(x, past)
        x, *own = self.looking.token(x, *past, *(tensor for layer in self.layers for tensor in layer))
        return x, own


class _Encoder(nn.Module):
    """Images in [-1, 1] -> the state of [START], then keys and values of every layer."""

    def __init__(self, model: AQuaMaM):
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        start, layers = self.model.encoded(images)
        return (start, *(tensor for layer in layers for tensor in layer))


class _Token(nn.Module):
    """One token of one rotation an image, what is kept of the one before it, and the prefix -> its last state, what is kept of it."""

    def __init__(self, model: AQuaMaM):
        super().__init__()
        self.model = model

    def forward(self, x: Tensor, *states: Tensor) -> tuple[Tensor, ...]:
        blocks = self.model.blocks
        earlier = len(states) - 2 * len(blocks)
        past, prefix, own = states[:earlier], states[earlier:], []
        for i, block in enumerate(blocks):
            x, state = block.extend(x, KeysValues(*prefix[2 * i : 2 * i + 2]), past[i] if past else None)  # type: ignore[operator]
            own.append(state)
        return (x, *own)


class _Frozen:
    """A network compiled with its weights as constants, anew for inputs of other shapes."""

    def __init__(self, network: nn.Module):
        self.run = torch.compile(network.eval(), dynamic=False)
        self.seen: set[tuple[Any, ...]] = set()

    def __call__(self, *inputs: Tensor) -> Any:
        from torch._inductor import config

        # plain tensors whatever mode the caller is in: for others the compiler would start again
        with torch.inference_mode(False), torch.no_grad():
            inputs = tuple(x.clone() if x.is_inference() else x.detach() for x in inputs)
            kinds = tuple((x.shape, x.stride(), x.dtype) for x in inputs)
            if kinds in self.seen:
                return self.run(*inputs)
            self.seen.add(kinds)
            with config.patch(freezing=True):
                return self.run(*inputs)
