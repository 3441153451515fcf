"""AQuaMaM: an image and the first components of a quaternion in, the distribution of the next component out."""

import math
import os
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from aquamam.errors import Config, require
from aquamam.geometry.cells import Cells
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.network.images import ImageInput, as_categories, as_image_batch
from aquamam.network.layers import (
    NORMS,
    Block,
    CategoryEmbedding,
    ComponentEmbedding,
    ConvStem,
    KeysValues,
    PatchEmbedding,
    Trunk,
    normalise,
)
from aquamam.posterior.calibration import Calibration, ViewClasses
from aquamam.posterior.distribution import Calibrated, Densities, EqualViews, RotationDistribution, Rotations
from aquamam.posterior.sentences import QuaternionSentences

Seen = Float[Tensor, "rotations batch steps"]
M = TypeVar("M", bound="RotationModel")
SHARING = "aquamam.export.sharing"  # stands below, as it reads models of every kind; imported when it is asked for


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """Everything a checkpoint needs to rebuild the network."""

    called = "a model config"

    positive: ClassVar = ("heads", "layers", "hidden")
    choices: ClassVar = {"embedding": ("patches", "stem", "category"), "stem_norm": tuple(NORMS)}

    bins: int = 500  # N in the paper
    chart: str = "atlas"
    density: str = "cells"
    by_volume: bool = False  # the network starts from the volumes of cells, see `Cells.log_share`
    dim: int = 512  # d_model
    heads: int = 8
    layers: int = 6
    hidden: int = 2048  # d_ff
    octaves: int = 6  # L
    dropout: float = 0.0
    embedding: str = "patches"  # or "stem", or "category" (the toy)
    image_size: int = 224
    channels: int = 3
    patch_size: int = 16
    stem: tuple[int, ...] = (32, 64, 128)  # channels of the stages; each halves the resolution
    stem_blocks: tuple[int, ...] = (1, 1, 1)  # residual blocks of each stage
    stem_norm: str = "group"  # or "batch"
    pose: bool = False  # three more tokens after the rotation's: where the part lies in the crop and how large it is
    categories: int = 6  # for embedding="category"
    tokens: int = 196  # for embedding="category"

    def __post_init__(self) -> None:
        super().__post_init__()
        same = len(self.stem) == len(self.stem_blocks)
        require(same, f"stem and stem_blocks must be equally long, got {self.stem} and {self.stem_blocks}.")
        _ = self.cells  # checks what they need
        unit = math.lcm(self.heads, 4)
        came = f"got dim={self.dim}, heads={self.heads}; try dim={max(1, round(self.dim / unit)) * unit}"
        require(self.dim % unit == 0, f"dim must be divisible by heads and by 4, {came}.")
        require(0 <= self.dropout < 1, f"dropout must lie in [0, 1), got {self.dropout}.")
        if self.embedding != "category":
            fits = 0 < self.token_pixels <= self.image_size and self.image_size % self.token_pixels == 0
            rule = f"image_size must be a multiple of {self.token_pixels} for {self.embedding}"
            require(fits, f"{rule}, got {self.image_size}.")

    @property
    def token_pixels(self) -> int:
        """Side of the square of pixels that a token stands for."""
        return self.patch_size if self.embedding == "patches" else 2 ** len(self.stem)

    @property
    def prefix_tokens(self) -> int:
        """P in the paper."""
        return self.tokens if self.embedding == "category" else (self.image_size // self.token_pixels) ** 2

    @cached_property
    def later_tokens(self) -> int:
        """Tokens that are read to tell the ones after them: the first two components, and with a pose three more."""
        return 5 if self.pose else 2

    @property
    def cells(self) -> Cells:
        return Cells(self.chart, self.bins, self.density, by_volume=self.by_volume)


class RotationModel(nn.Module):
    """`model(images)` is a posterior: a `torch.distributions.Distribution` over rotations with exact likelihoods and
    samples.

    A system tells `posterior` and, where it trains otherwise, `objective`. What is known besides is added here, for
    every system alike: which rotations of the object are indistinguishable in an image, and what held-out images say
    (`calibration`).
    """

    kind: ClassVar[str]
    output_layers: ClassVar[tuple[str, ...]] = ()  # may learn at a rate of their own
    config: Any

    def __init__(self) -> None:
        super().__init__()
        self.calibration = Calibration()
        self.info: dict[str, Any] = {}
        self.symmetry: SymmetryGroup | None = None  # of the object, where it is known and more than none
        self.view_classes: ViewClasses | None = None
        self.source: Path | None = None  # the file that it was loaded from; a fitted part's mesh lies beside it

    if TYPE_CHECKING:  # torch's own says that a module returns anything

        def __call__(self, images: ImageInput) -> RotationDistribution: ...

    def posterior(self, images: ImageInput) -> RotationDistribution:
        """What the network alone says."""
        raise NotImplementedError

    def forward(self, images: ImageInput) -> RotationDistribution:
        """Posteriors of images: a tensor (B, C, H, W), uint8 or float in [0, 1]; PIL images; or categories (B,)."""
        posterior = self.posterior(images)
        if self.view_classes is not None:
            posterior = EqualViews(posterior, self.view_classes)
        return Calibrated(posterior, self.calibration)

    def objective(self, images: ImageInput, q: Rotations, **options: Any) -> Densities:
        """What training makes large for each true rotation (xyzw): the log-likelihood, unless a system has another.

        Models with bins smear their labels by `smoothing` bins, and those with a pose learn the `window` of each crop
        (`posterior.windows`), too; a `generator` is for systems that draw.
        """
        return self.posterior(images).log_prob(q)

    def loss(self, images: ImageInput, q: Rotations, *, weights: Densities | None = None, **options: Any) -> Tensor:
        """What training minimises: minus the objective, averaged over images and over the rotations of an image, or
        summed with their weights, which sum to one for an image; options are those of `objective`."""
        value = self.objective(images, q, **options)
        total = value.mean(0) if weights is None else (value * weights).sum(0)
        return -(total.sum() / max(total.numel(), 1)).float()  # of a batch whose images cannot be read: nothing

    def learn(self, /, **info: Any) -> None:
        """Add to the description that the checkpoint keeps; what it says of the object is used from now on."""
        self.info = {**self.info, **info}
        group = (self.info.get("symmetries") or {}).get("group") or {}
        several = len(group.get("elements", ())) > 1 or group.get("axis") is not None
        self.symmetry = SymmetryGroup.from_dict(group) if several else None
        told = self.info.get("view_classes")
        self.view_classes = None if told is None else ViewClasses.from_dict(told)

    @classmethod
    def from_pretrained(cls: type[M], folder_or_repo: str | os.PathLike[str], **options: Any) -> M:
        """A model from a folder, a bundled name, or a repository "owner/name" of the Hugging Face hub.

        options: revision and token of the hub, and the device.
        """
        return import_module(SHARING).from_pretrained(cls, folder_or_repo, **options)

    def save_pretrained(self, folder: str | os.PathLike[str]) -> Path:
        """Write the checkpoint, a card that says what the model is, and a fitted part's mesh into a folder."""
        return import_module(SHARING).save_pretrained(self, folder)

    def push_to_hub(self, repo: str, **options: Any) -> str:
        """Put the same into a repository "owner/name" of the hub; options: private, token, message."""
        return import_module(SHARING).push_to_hub(self, repo, **options)

    @property
    def device(self) -> torch.device:
        return next(self.parameters(), torch.empty(0)).device

    def generator(self, seed: int) -> torch.Generator:
        """A source of random numbers where the model is."""
        return torch.Generator(device=self.device).manual_seed(seed)

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())


def embedding(config: ModelConfig) -> nn.Module:
    """The layers from an image or a category to tokens."""
    if config.embedding == "category":
        return CategoryEmbedding(config.categories, config.tokens, config.dim)
    if config.embedding == "patches":
        return PatchEmbedding(config.channels, config.patch_size, config.dim)
    return ConvStem(config.channels, config.stem, config.stem_blocks, config.dim, config.stem_norm)


class AQuaMaM(RotationModel, Trunk):
    """A Transformer that reads an image and models a quaternion's components one after the other as bins."""

    kind = "aquamam"
    output_layers = ("head", "first_head", "pose_head")

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config: ModelConfig = config
        self.cells = config.cells
        self.embed = embedding(config)
        self.start = nn.Parameter(torch.zeros(config.dim))
        self.position = nn.Parameter(torch.empty(config.prefix_tokens + 1 + config.later_tokens, config.dim))
        nn.init.normal_(self.position, std=0.02)
        self.components = nn.ModuleList(
            ComponentEmbedding(config.dim, config.octaves) for _ in range(config.later_tokens)
        )
        self.blocks = nn.ModuleList(
            Block(config.dim, config.heads, config.hidden, config.dropout) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.dim)
        self.head = nn.Linear(config.dim, config.bins)
        if self.cells.chart.count > 1:
            # with several charts the first token also names the chart, and the later ones must be told of it
            self.first_head = nn.Linear(config.dim, self.cells.first_tokens)
            self.chart_embed = nn.Embedding(self.cells.chart.count, config.dim)
        if config.pose:
            self.pose_head = nn.Linear(config.dim, config.bins)

    def posterior(self, images: ImageInput) -> QuaternionSentences:
        return QuaternionSentences(self.encode(images), self.cells)

    def objective(
        self, images: ImageInput, q: Rotations, *, window: Any = None, smoothing: float = 0.0, **options: Any
    ) -> Densities:
        return self.posterior(images).smoothed_log_prob(q, smoothing, window if self.config.pose else None)

    def encode(self, images: ImageInput) -> "Prefix":
        """Run the images through the network once; any number of rotations then costs two tokens each."""
        config, device = self.config, self.start.device
        if config.embedding != "category":
            size = (config.image_size, config.image_size)
            pixels = as_image_batch(images, channels=config.channels, size=size).to(device)
            return Prefix(self, *self.encoded(normalise(pixels)))
        # equal categories are encoded once
        categories, copies = as_categories(images, config.categories).to(device).unique(return_inverse=True)
        return Prefix(self, *self.encoded(categories)).some(copies)

    def embedded_rotations(
        self, chart: Int[Tensor, "batch rotations"], seen: Float[Tensor, "batch rotations steps"], components: range
    ) -> Float[Tensor, "batch rotations steps dim"]:
        """The tokens of some components: of the quaternion, then of the window, each brought to [-1, 1]."""
        first = len(self.position) - self.config.later_tokens
        scale = [self.cells.chart.half_width] * 3 + [1.0, 1.0]
        tokens = []
        for c, value in zip(components, seen.unbind(-1)):
            tokens.append(self.components[c](value / scale[c]) + self.position[first + c])
        x = torch.stack(tokens, 2)
        return x + self.chart_embed(chart)[:, :, None] if self.cells.chart.count > 1 else x

    def first_logits(self, start: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch first_tokens"]:
        """Logits of the first token from the last state of the encoder."""
        head = self.first_head if self.cells.chart.count > 1 else self.head
        return head(self.norm(start)) / self.calibration.temperatures[0]

    def later_logits(self, states: Float[Tensor, "*rows steps dim"], token: int) -> Float[Tensor, "*rows steps bins"]:
        """Logits of the tokens from this one on from the last states of the rotation tokens before them."""
        of_rotation = max(0, 3 - token)  # the first steps tell components of the rotation, the others the window
        logits = self.head(states[..., :of_rotation, :]) if of_rotation else self.pose_head(states)
        if 0 < of_rotation < states.shape[-2]:
            logits = torch.cat([logits, self.pose_head(states[..., of_rotation:, :])], -2)
        temperatures = self.calibration.temperatures[token : token + states.shape[-2]]
        return logits / states.new_tensor(temperatures)[:, None]


class Prefix:
    """Encoded images: the conditionals of AQuaMaM's posterior."""

    def __init__(self, model: AQuaMaM, start: Float[Tensor, "batch dim"], layers: list[KeysValues]):
        self.model, self.start, self.layers, self.batch = model, start, layers, len(start)
        config = model.config
        self.row_floats = 2 * (3 * config.heads * len(model.position) + 2 * config.hidden + 10 * config.dim)

    def some(self, images: Tensor | slice) -> "Prefix":
        return Prefix(self.model, self.start[images], [KeysValues(k[images], v[images]) for k, v in self.layers])

    @property
    def image_state(self) -> Float[Tensor, "batch dim"]:
        """The mean value that the last layer keeps of an image's tokens."""
        return self.layers[-1].values.mean(2).flatten(1)

    def first(self) -> Float[Tensor, "batch first_tokens"]:
        return self.model.first_logits(self.start)

    def rest(
        self, chart: Int[Tensor, "rotations batch"], seen: Seen, past: tuple[Tensor, ...] = ()
    ) -> tuple[Float[Tensor, "rotations batch steps bins"], tuple[Tensor, ...]]:
        states, own = self.states(chart, seen, past)
        return self.model.later_logits(states, 1 + own[0].shape[2] - seen.shape[-1]), own

    def states(
        self, chart: Int[Tensor, "rotations batch"], seen: Seen, past: tuple[Tensor, ...] = ()
    ) -> tuple[Float[Tensor, "rotations batch steps dim"], tuple[Tensor, ...]]:
        """What the head reads to give the logits of `rest`: with many bins it is far smaller than they are."""
        model, done, own = self.model, past[0].shape[2] if past else 0, []
        # inside, the images come first: all rotations of an image are then one matrix
        x = model.embedded_rotations(chart.T, seen.transpose(0, 1), range(done, done + seen.shape[-1]))
        for i, (block, image) in enumerate(zip(model.blocks, self.layers)):
            x, state = block.extend(x, image, past[i].transpose(0, 1) if past else None)  # type: ignore[operator]
            own.append(state.transpose(0, 1))
        return model.norm(x).transpose(0, 1), tuple(own)
