"""From an image to one feature vector: the part that all baselines share, with the same small encoders as AQuaMaM's."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Shaped
from torch import Tensor, nn

from aquamam.baselines.resnet import FEATURES, ResNet50
from aquamam.config import Config, require_positive
from aquamam.errors import InputError
from aquamam.network.images import ImageInput, as_categories, as_image_batch
from aquamam.network.layers import Block, ConvStem, PatchEmbedding, normalise
from aquamam.network.model import ModelConfig

ENCODERS = ("category", "stem", "patches", "resnet50")


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    """What a baseline reads and how it sees; a system's own config adds its fields to these."""

    encoder: str = "stem"  # or "patches", "resnet50", or "category" (the toy)
    dim: int = 192  # of the Transformer behind "stem" and "patches", and of their feature
    heads: int = 6
    layers: int = 2
    hidden: int = 576
    dropout: float = 0.0
    image_size: int = 64
    channels: int = 3
    patch_size: int = 16
    stem: tuple[int, ...] = (24, 48, 96, 192)
    stem_blocks: tuple[int, ...] = (0, 1, 1, 1)
    stem_norm: str = "group"  # or "batch"
    categories: int = 6  # for encoder="category"
    category_features: int = FEATURES  # width of a category's embedding: as many numbers as a ResNet-50 gives

    def __post_init__(self) -> None:
        if self.encoder not in ENCODERS:
            raise InputError(f"encoder must be one of {', '.join(ENCODERS)}, got {self.encoder!r}.")
        require_positive(self, "categories", "category_features", "image_size")
        if self.channels not in (1, 3):
            raise InputError(f"channels must be 1 (grey) or 3 (RGB), got {self.channels}.")
        if self.encoder == "resnet50" and self.image_size < 32:
            raise InputError(f"image_size must be at least 32 for resnet50, got {self.image_size}.")
        _ = self.trunk  # validates what is shared with AQuaMaM

    @property
    def trunk(self) -> ModelConfig:
        """The AQuaMaM whose encoder this is."""
        small = self.encoder in ("stem", "patches")
        return ModelConfig(
            embedding=self.encoder if small else "category", dim=self.dim, heads=self.heads, layers=self.layers,
            hidden=self.hidden, dropout=self.dropout, image_size=self.image_size, channels=self.channels,
            patch_size=self.patch_size, stem=self.stem, stem_blocks=self.stem_blocks, stem_norm=self.stem_norm,
            categories=self.categories,
        )  # fmt: skip

    @property
    def features(self) -> int:
        """Length of the feature vector."""
        return {"category": self.category_features, "resnet50": FEATURES}.get(self.encoder, self.dim)


class Encoder(nn.Module):
    """`encoder(images)` is one feature vector an image."""

    def __init__(self, config: EncoderConfig):
        super().__init__()
        self.config = config
        if config.encoder == "category":
            self.table = nn.Embedding(config.categories, config.category_features)
        elif config.encoder == "resnet50":
            self.resnet = ResNet50()
        else:
            self.small = PrefixEncoder(config.trunk)

    def forward(self, images: ImageInput) -> Float[Tensor, "batch features"]:
        prepared = self.prepare(images)
        if self.config.encoder == "category":
            return self.table(prepared)
        return self.resnet(prepared) if self.config.encoder == "resnet50" else self.small(prepared)

    def prepare(self, images: ImageInput) -> Shaped[Tensor, "..."]:
        """Validate and stack the input: (B, channels, H, W), or (B,) categories."""
        device = next(self.parameters()).device
        if self.config.encoder == "category":
            return as_categories(images, self.config.categories).to(device)
        size = (self.config.image_size, self.config.image_size)
        return as_image_batch(images, channels=self.config.channels, size=size).to(device)


class PrefixEncoder(nn.Module):
    """AQuaMaM's own encoder: patches or stem, then the Transformer among image tokens and [START], whose state is the feature."""

    def __init__(self, trunk: ModelConfig):
        super().__init__()
        self.embed: nn.Module
        if trunk.embedding == "patches":
            self.embed = PatchEmbedding(trunk.channels, trunk.patch_size, trunk.dim)
        else:
            self.embed = ConvStem(trunk.channels, trunk.stem, trunk.stem_blocks, trunk.dim, trunk.stem_norm)
        self.start = nn.Parameter(torch.zeros(trunk.dim))
        self.position = nn.Parameter(torch.randn(trunk.prefix_tokens + 1, trunk.dim) * 0.02)
        self.blocks = nn.ModuleList(
            Block(trunk.dim, trunk.heads, trunk.hidden, trunk.dropout) for _ in range(trunk.layers)
        )
        self.norm = nn.LayerNorm(trunk.dim)

    def forward(self, images: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features"]:
        x = self.embed(normalise(images))
        x = torch.cat([x, self.start.expand(len(x), 1, -1)], 1) + self.position
        for i, block in enumerate(self.blocks):
            last = i == len(self.blocks) - 1  # of which only [START] is read
            x, _ = block.encode(x, slice(-1, None) if last else slice(None))  # type: ignore[operator]
        return self.norm(x[:, -1])
