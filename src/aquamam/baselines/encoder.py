"""From an image to one feature vector: the part that all baselines share."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from safetensors.torch import load_file
from torch import Tensor, nn

from aquamam.errors import Config, InputError, require
from aquamam.network.images import ImageInput, as_categories, as_image_batch
from aquamam.network.layers import Block, Trunk, normalise
from aquamam.network.model import ModelConfig, embedding

RESNET_FEATURES = 2048
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # of ImageNet's pictures


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    """What a baseline reads and how it sees; a system's own config adds its fields to these."""

    positive: ClassVar[tuple[str, ...]] = ("categories", "category_features", "image_size")
    choices: ClassVar = {"encoder": ("category", "stem", "patches", "resnet50"), "channels": (1, 3)}  # grey or RGB

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
    category_features: int = RESNET_FEATURES  # width of a category's embedding

    def __post_init__(self) -> None:
        super().__post_init__()
        large = self.encoder != "resnet50" or self.image_size >= 32
        require(large, f"image_size must be at least 32 for resnet50, got {self.image_size}.")
        self.trunk()  # validates what is shared with AQuaMaM

    def trunk(self, **own: Any) -> ModelConfig:
        """The AQuaMaM whose encoder this is."""
        shared = "dim heads layers hidden dropout image_size channels patch_size stem stem_blocks stem_norm categories"
        embedding = self.encoder if self.encoder in ("stem", "patches") else "category"
        return ModelConfig(embedding=embedding, **{name: getattr(self, name) for name in shared.split()}, **own)

    @property
    def features(self) -> int:
        return {"category": self.category_features, "resnet50": RESNET_FEATURES}.get(self.encoder, self.dim)


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
            self.small = PrefixEncoder(config.trunk())

    def forward(self, images: ImageInput) -> Float[Tensor, "batch features"]:
        device, side = next(self.parameters()).device, self.config.image_size
        if self.config.encoder == "category":
            return self.table(as_categories(images, self.config.categories).to(device))
        pixels = as_image_batch(images, channels=self.config.channels, size=(side, side)).to(device)
        return self.resnet(pixels) if self.config.encoder == "resnet50" else self.small(pixels)


class PrefixEncoder(Trunk):
    """AQuaMaM's own encoder: patches or stem, then the Transformer among image tokens and [START], the feature."""

    def __init__(self, trunk: ModelConfig):
        super().__init__()
        self.embed = embedding(trunk)
        self.start = nn.Parameter(torch.zeros(trunk.dim))
        self.position = nn.Parameter(torch.empty(trunk.prefix_tokens + 1, trunk.dim))
        nn.init.normal_(self.position, std=0.02)
        sizes = trunk.dim, trunk.heads, trunk.hidden, trunk.dropout
        self.blocks = nn.ModuleList(Block(*sizes) for _ in range(trunk.layers))
        self.norm = nn.LayerNorm(trunk.dim)

    def forward(self, images: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch features"]:
        return self.norm(self.encoded(normalise(images))[0])


class Bottleneck(nn.Module):
    """1x1, 3x3 (strided), 1x1 convolutions beside a skip; the last one is four times as wide."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        wide, same = 4 * channels, stride == 1 and channels_in == 4 * channels
        self.conv1 = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, wide, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(wide)
        fitting = [] if same else [nn.Conv2d(channels_in, wide, 1, stride, bias=False), nn.BatchNorm2d(wide)]
        self.downsample = nn.Sequential(*fitting)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch wide h w"]:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet50(nn.Module):
    """Images, uint8 or float in [0, 1], to 2,048 features (He et al. 2016), with torchvision's tensor names."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        for i, (before, channels, blocks) in enumerate(((64, 64, 3), (256, 128, 4), (512, 256, 6), (1024, 512, 3)), 1):
            stage = [Bottleneck(before, channels, 2 if i > 1 else 1)]
            stage += [Bottleneck(4 * channels, channels, 1) for _ in range(blocks - 1)]
            self.add_module(f"layer{i}", nn.Sequential(*stage))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.register_buffer("mean", torch.tensor(_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(_STD)[:, None, None], persistent=False)

    def forward(self, images: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch 2048"]:
        x = (normalise(images) + 1) / 2
        x = (x.expand(-1, 3, -1, -1) - self.mean) / self.std  # type: ignore[operator]
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for i in range(1, 5):
            x = getattr(self, f"layer{i}")(x)
        return x.mean((-2, -1))

    def load_imagenet(self, path: str | os.PathLike[str]) -> None:
        """Read a torchvision-format weight file (`.pth` or `.safetensors`); the classifier in it is left out."""
        path, own = Path(path), self.state_dict()
        require(path.is_file(), f"there is no weight file at {path}.")
        try:
            safe = path.suffix == ".safetensors"
            state = load_file(path) if safe else torch.load(path, map_location="cpu", weights_only=True)
            shapes = {name: tensor.shape for name, tensor in state.items()}
        except Exception as error:  # unpicklers and safetensors raise many kinds
            raise InputError(f"{path} is not a file of plain tensors; save a state_dict with torch.save.") from error
        if wrong := [name for name in own if shapes.get(name) != own[name].shape]:
            told = f"{len(wrong)} of {len(own)} tensors are missing or of another shape, first {wrong[0]!r}"
            raise InputError(f"{path} is not a ResNet-50 in torchvision's format: {told}; try its resnet50-*.pth.")
        self.load_state_dict({name: state[name] for name in own})
