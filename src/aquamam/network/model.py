"""AQuaMaM: an image and the first components of a quaternion in, the distribution of the next component out."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from aquamam.network import onepass
from aquamam.geometry.cells import Cells
from aquamam.config import Config
from aquamam.errors import InputError
from aquamam.network.images import ImageInput, as_image_batch
from aquamam.network.layers import (
    NORMS,
    Block,
    CategoryEmbedding,
    ComponentEmbedding,
    ConvStem,
    KeysValues,
    PatchEmbedding,
    ScaledLinear,
    normalise,
)
from aquamam.posterior.sentences import QuaternionSentences

KNOTS = (1.0, 2.0)  # where `contrast` changes, in nats below the highest logit
SWING = math.log(4)  # a state makes logits at most so many times as sharp, or flat


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Config):
    """Everything a checkpoint needs to rebuild the network."""

    called = "a model config"

    bins: int = 500  # N in the paper
    chart: str = "atlas"
    density: str = "cells"
    by_volume: bool = False  # the network starts from the volumes of cells, see `Cells.log_share`
    spill: float = 0.0  # bins with less than this share left pass their probability inwards, see `Cells.restrict`
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
    scaled_heads: bool = False  # one learnt factor for all logits of a head
    # factors of the logits of the three tokens, set by `tempering.temper`
    sharpness: tuple[float, ...] = (1.0, 1.0, 1.0)
    # what a logit of the second and third token counts that lies up to 1, up to 2 and more below the highest, set by `temper_contrast`
    contrast: tuple[float, ...] = (1.0, 1.0, 1.0)
    certainty: bool = False  # further factors that depend on the state which the logits come from, set by it, too
    categories: int = 6  # for embedding="category"
    tokens: int = 196  # for embedding="category"

    def __post_init__(self) -> None:
        if len(self.stem) != len(self.stem_blocks):
            raise InputError(f"stem and stem_blocks must be equally long, got {self.stem} and {self.stem_blocks}.")
        if self.stem_norm not in NORMS:
            raise InputError(f"stem_norm must be {' or '.join(NORMS)}, got {self.stem_norm!r}.")
        _ = self.cells  # checks what they need
        if self.heads < 1 or self.dim % self.heads or self.dim % 4:
            nearest = (
                max(1, round(self.dim / math.lcm(self.heads, 4))) * math.lcm(self.heads, 4)
                if self.heads > 0
                else self.dim
            )
            raise InputError(
                f"dim must be divisible by heads and by 4, got dim={self.dim}, heads={self.heads}; try dim={nearest}."
            )
        if self.layers < 1 or self.hidden < 1:
            raise InputError(f"layers and hidden must be positive, got layers={self.layers}, hidden={self.hidden}.")
        if not 0 <= self.dropout < 1:
            raise InputError(f"dropout must lie in [0, 1), got {self.dropout}.")
        if len(self.sharpness) != 3 or not all(0 < factor < math.inf for factor in self.sharpness):
            raise InputError(f"sharpness must be three positive factors, got {self.sharpness}.")
        if len(self.contrast) != 3 or not all(0 < slope < math.inf for slope in self.contrast):
            raise InputError(f"contrast must be three positive slopes, got {self.contrast}.")
        if self.embedding not in ("patches", "stem", "category"):
            raise InputError(f"embedding must be patches, stem or category, got {self.embedding!r}.")
        step = self.patch_size if self.embedding == "patches" else 2 ** len(self.stem)
        if self.embedding != "category" and (step < 1 or self.image_size < step or self.image_size % step):
            raise InputError(f"image_size must be a multiple of {step} for {self.embedding}, got {self.image_size}.")

    @property
    def prefix_tokens(self) -> int:
        """P in the paper."""
        if self.embedding == "category":
            return self.tokens
        step = self.patch_size if self.embedding == "patches" else 2 ** len(self.stem)
        return (self.image_size // step) ** 2

    @property
    def cells(self) -> Cells:
        return Cells.make(self.chart, self.bins, self.density, by_volume=self.by_volume, spill=self.spill)


class AQuaMaM(nn.Module):
    """`model(images)` is a posterior: a `torch.distributions.Distribution` over rotations with exact likelihoods and samples."""

    kind = "aquamam"
    smooths_labels = True  # `loss` takes `smoothing`
    output_layers = ("head", "first_head", "certainty")  # may learn at a rate of their own

    def __init__(self, config: ModelConfig):
        super().__init__()
        self.config = config
        self.cells = config.cells
        self.embed: nn.Module
        if config.embedding == "category":
            self.embed = CategoryEmbedding(config.categories, config.tokens, config.dim)
        elif config.embedding == "patches":
            self.embed = PatchEmbedding(config.channels, config.patch_size, config.dim)
        else:
            self.embed = ConvStem(config.channels, config.stem, config.stem_blocks, config.dim, config.stem_norm)
        self.start = nn.Parameter(torch.zeros(config.dim))
        self.position = nn.Parameter(torch.randn(config.prefix_tokens + 3, config.dim) * 0.02)
        self.components = nn.ModuleList(ComponentEmbedding(config.dim, config.octaves) for _ in range(2))
        self.blocks = nn.ModuleList(
            Block(config.dim, config.heads, config.hidden, config.dropout) for _ in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.dim)
        head = ScaledLinear if config.scaled_heads else nn.Linear
        self.head = head(config.dim, config.bins)
        if self.cells.chart.count > 1:
            # with several charts the first token also names the chart, and the later ones must be told of it
            self.first_head = head(config.dim, self.cells.first_tokens)
            self.chart_embed = nn.Embedding(self.cells.chart.count, config.dim)
        self.certainty: nn.Linear | None = None
        if config.certainty:
            self.add_certainty()

    def add_certainty(self) -> nn.Linear:
        """Factors that depend on the state, all 1 at first."""
        self.certainty = nn.Linear(self.config.dim, 3, device=self.start.device)
        nn.init.zeros_(self.certainty.weight)
        nn.init.zeros_(self.certainty.bias)
        return self.certainty

    def forward(self, images: ImageInput) -> QuaternionSentences:
        """The posterior of each image: tensor (B, 3, H, W), uint8 or float in [0, 1]; a PIL image; a list of them; categories (B,)."""
        return QuaternionSentences(self.encode(images), self.cells)

    def loss(
        self,
        images: ImageInput,
        q: Float[Tensor, "rotations batch 4"],
        *,
        weights: Float[Tensor, "rotations batch"] | None = None,
        smoothing: float = 0.0,
        generator: torch.Generator | None = None,
    ) -> Float[Tensor, ""]:
        """What training minimises: minus the log-likelihood of the true rotations (xyzw), summed with their weights over the rotations
        of an image and averaged over images; `smoothing` smears the bin labels. Nothing here is random but dropout."""
        log_p = self(images).smoothed_log_prob(q, smoothing)
        log_p = log_p.mean(0) if weights is None else (log_p * weights).sum(0)
        return -log_p.mean().float()

    def encode(self, images: ImageInput) -> "Prefix":
        """Run the images through the network once; any number of rotations then costs two tokens each."""
        prepared = self.prepare(images)
        copies = None
        if self.config.embedding == "category":  # equal inputs are encoded once
            prepared, copies = prepared.unique(return_inverse=True)
        start, layers = self.encoded(prepared if self.config.embedding == "category" else normalise(prepared))
        if copies is not None and len(copies) != len(start):
            start, layers = start[copies], [KeysValues(k[copies], v[copies]) for k, v in layers]
        return Prefix(self, layers, start)

    def together(
        self,
        images: Tensor,
        chart: Int[Tensor, "rotations batch"],
        seen: Float[Tensor, "rotations batch 2"],
    ) -> tuple[Float[Tensor, "batch dim"], Float[Tensor, "rotations batch 2 dim"]]:
        """What the heads read for the first token and for the others, of images in [-1, 1] or categories whose rotations are known
        beforehand: all tokens of an image are one sequence, and the gradients of few images with many rotations take a fifth less time
        than those of `encode` and `Prefix.states`."""
        rotations = len(seen)
        x, known = self.embedded(images), self.embedded_rotations(chart.T, seen.transpose(0, 1), range(2))
        x = torch.cat([x, known.flatten(1, 2)], 1)
        # [START] sees the image, a rotation's first token itself too, and its second both
        token = torch.arange(2 * rotations, device=x.device)
        own = (token // 2 == token[:, None] // 2) & (token <= token[:, None])
        mask = x.new_zeros(len(token) + 1, x.shape[1])
        mask[:, -len(token) :].masked_fill_(~nn.functional.pad(own, (0, 0, 1, 0)), -torch.inf)
        for i, block in enumerate(self.blocks):
            x = block.together(x, mask, last=i == len(self.blocks) - 1)  # type: ignore[operator]
        x = self.norm(x)
        return x[:, 0], x[:, 1:].unflatten(1, (rotations, 2)).transpose(0, 1)

    def embedded(self, images: Tensor) -> Float[Tensor, "batch tokens dim"]:
        """The patch tokens and [START] of images in [-1, 1] or of categories."""
        x = self.embed(images)
        return torch.cat([x, self.start.expand(x.shape[0], 1, -1)], 1) + self.position[:-2]

    def embedded_rotations(
        self, chart: Int[Tensor, "batch rotations"], seen: Float[Tensor, "batch rotations steps"], components: range
    ) -> Float[Tensor, "batch rotations steps dim"]:
        """The tokens of some components."""
        seen = seen / self.cells.chart.half_width
        tokens = [self.components[c](seen[..., i]) + self.position[c - 2] for i, c in enumerate(components)]
        x = torch.stack(tokens, 2)
        return x + self.chart_embed(chart)[:, :, None] if self.cells.chart.count > 1 else x

    def encoded(self, images: Tensor) -> tuple[Float[Tensor, "batch dim"], list[KeysValues]]:
        """The last state of [START], and what every layer keeps of images in [-1, 1] or of categories."""
        x = self.embedded(images)
        whole = onepass.encode(self.blocks, x)
        if whole is not None:
            return whole
        layers = []
        for i, block in enumerate(self.blocks):
            x, keys_values = block.prefix(x, last=i == len(self.blocks) - 1)  # type: ignore[operator]
            layers.append(keys_values)
        return x[:, -1], layers

    def first_logits(self, start: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch first_tokens"]:
        """Logits of the first token from the last state of the encoder."""
        head = self.first_head if self.cells.chart.count > 1 else self.head
        state = self.norm(start)[:, None]
        return self.sharpened(head(state), state, 0)[:, 0]

    def sharpened(
        self, logits: Float[Tensor, "*rows steps bins"], states: Float[Tensor, "*rows steps dim"], token: int
    ) -> Float[Tensor, "*rows steps bins"]:
        """Logits of the tokens from this one on, times the factors that `tempering` found for them, bent as it found them to need."""
        tokens = slice(token, token + logits.shape[-2])
        sharpness = self.config.sharpness[tokens]
        if self.certainty is not None:
            log_factor = (states * self.certainty.weight[tokens]).sum(-1) + self.certainty.bias[tokens]
            factor = logits.new_tensor(sharpness) * torch.exp(SWING * torch.tanh(log_factor / SWING))
            logits = logits * factor[..., None]
        elif any(f != 1 for f in sharpness):
            logits = logits * logits.new_tensor(sharpness)[:, None]
        return bent(logits, self.config.contrast) if token and self.config.contrast != (1, 1, 1) else logits

    def prepare(self, images: ImageInput) -> Tensor:
        """Validate and stack the input: (B, channels, H, W), or (B,) categories."""
        if self.config.embedding == "category":
            return self._prepare_categories(images)
        size = (self.config.image_size, self.config.image_size)
        return as_image_batch(images, channels=self.config.channels, size=size).to(self.start.device)

    def _prepare_categories(self, images: ImageInput) -> Int[Tensor, "batch"]:
        if not isinstance(images, Tensor) or images.is_floating_point() or images.ndim != 1:
            raise InputError("this model reads categories, a 1-D tensor of whole numbers, not images.")
        if len(images) and (images.min() < 0 or images.max() >= self.config.categories):
            raise InputError(
                f"categories run from 0 to {self.config.categories - 1}, got {int(images.min())} to {int(images.max())}."
            )
        return images.to(self.start.device).long()

    @property
    def parameter_count(self) -> int:
        return sum(p.numel() for p in self.parameters())


def bent(logits: Float[Tensor, "*rows bins"], slopes: Sequence[float]) -> Float[Tensor, "*rows bins"]:
    """Logits as a function of how far they lie below the highest: piecewise linear, with a slope for each of the ranges between `KNOTS`."""
    below = logits.amax(-1, keepdim=True) - logits
    total = below * slopes[0]
    for knot, slope, before in zip(KNOTS, slopes[1:], slopes):
        total = total + (below - knot).clamp_min(0) * (slope - before)
    return -total


class Prefix:
    """Encoded images: the conditionals of AQuaMaM's posterior."""

    def __init__(self, model: AQuaMaM, layers: list[KeysValues], start: Float[Tensor, "batch dim"]):
        self.model = model
        self.layers = layers
        self.start = start
        self.batch = len(start)
        config = model.config
        self.row_floats = 2 * (3 * config.heads * (config.prefix_tokens + 3) + 2 * config.hidden + 10 * config.dim)

    def some(self, images: Tensor | slice) -> "Prefix":
        return Prefix(self.model, [KeysValues(k[images], v[images]) for k, v in self.layers], self.start[images])

    def first(self) -> Float[Tensor, "batch first_tokens"]:
        return self.model.first_logits(self.start)

    def rest(
        self,
        chart: Int[Tensor, "rotations batch"],
        seen: Float[Tensor, "rotations batch steps"],
        past: tuple[Tensor, ...] = (),
    ) -> tuple[Float[Tensor, "rotations batch steps bins"], tuple[Tensor, ...]]:
        states, own = self.states(chart, seen, past)
        done = past[0].shape[2] if past else 0
        return self.model.sharpened(self.model.head(states), states, 1 + done), own

    def states(
        self,
        chart: Int[Tensor, "rotations batch"],
        seen: Float[Tensor, "rotations batch steps"],
        past: tuple[Tensor, ...] = (),
    ) -> tuple[Float[Tensor, "rotations batch steps dim"], tuple[Tensor, ...]]:
        """What the head reads to give the logits of `rest`: with many bins it is far smaller than they are."""
        model = self.model
        done = past[0].shape[2] if past else 0
        # inside, the images come first: all rotations of an image are then one matrix
        steps = range(done, done + seen.shape[-1])
        x = model.embedded_rotations(chart.T, seen.transpose(0, 1), steps)
        x, own = self.extended(x, tuple(state.transpose(0, 1) for state in past))
        return model.norm(x).transpose(0, 1), tuple(state.transpose(0, 1) for state in own)

    def extended(
        self, x: Float[Tensor, "batch rotations steps dim"], past: tuple[Tensor, ...]
    ) -> tuple[Float[Tensor, "batch rotations steps dim"], list[Tensor]]:
        """Rotation tokens after all layers, and what these keep of them."""
        own = []
        for i, (block, keys_values) in enumerate(zip(self.model.blocks, self.layers)):
            x, state = block.extend(x, keys_values, past[i] if past else None)  # type: ignore[operator]
            own.append(state)
        return x, own
