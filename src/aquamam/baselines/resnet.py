"""ResNet-50 without its classifier, with torchvision's tensor names, so that its ImageNet weights load from a local file."""

import os
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float, Shaped
from safetensors.torch import load_file
from torch import Tensor, nn

from aquamam.errors import InputError

FEATURES = 2048
# of the pictures that ImageNet weights were trained on
_MEAN, _STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


class Bottleneck(nn.Module):
    """1x1, 3x3 (strided), 1x1 convolutions beside a skip; the last one is four times as wide."""

    def __init__(self, channels_in: int, channels: int, stride: int):
        super().__init__()
        wide = 4 * channels
        self.conv1 = nn.Conv2d(channels_in, channels, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels)
        self.conv3 = nn.Conv2d(channels, wide, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(wide)
        self.downsample = nn.Sequential()
        if stride > 1 or channels_in != wide:
            self.downsample = nn.Sequential(nn.Conv2d(channels_in, wide, 1, stride, bias=False), nn.BatchNorm2d(wide))

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch wide h w"]:
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        return F.relu(self.bn3(self.conv3(y)) + self.downsample(x))


class ResNet50(nn.Module):
    """Images, uint8 or float in [0, 1], to 2,048 features (He et al. 2016, stride in the 3x3 convolution)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        channels_in = 64
        for i, (channels, blocks) in enumerate(zip((64, 128, 256, 512), (3, 4, 6, 3)), 1):
            stage = []
            for block in range(blocks):
                stage.append(Bottleneck(channels_in, channels, 2 if i > 1 and block == 0 else 1))
                channels_in = 4 * channels
            self.add_module(f"layer{i}", nn.Sequential(*stage))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.register_buffer("mean", torch.tensor(_MEAN)[:, None, None], persistent=False)
        self.register_buffer("std", torch.tensor(_STD)[:, None, None], persistent=False)

    def forward(self, images: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch 2048"]:
        x = images.float() / 255 if images.dtype == torch.uint8 else images.float()
        if x.shape[1] == 1:
            x = x.expand(-1, 3, -1, -1)
        x = (x - self.mean) / self.std  # type: ignore[operator]
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for i in range(1, 5):
            x = getattr(self, f"layer{i}")(x)
        return x.mean((-2, -1))

    def load_imagenet(self, path: str | os.PathLike[str]) -> None:
        """Read a torchvision-format weight file (`.pth` or `.safetensors`); the classifier in it is left out."""
        state = _read_state(Path(path))
        state = {name.removeprefix("module."): tensor for name, tensor in state.items()}
        own = self.state_dict()
        wrong = [name for name in own if name not in state or state[name].shape != own[name].shape]
        if wrong:
            raise InputError(
                f"{os.fspath(path)} is not a ResNet-50 in torchvision's format: {len(wrong)} of {len(own)} tensors are missing "
                f"or of another shape, first {wrong[0]!r}; its file is called resnet50-*.pth there."
            )
        self.load_state_dict({name: state[name] for name in own})


def _read_state(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise InputError(f"there is no weight file at {path}.")
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # unpicklers and safetensors raise many kinds
        raise InputError(f"{path} is not a file of plain tensors; save a state_dict with torch.save.") from error
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise InputError(f"{path} must hold a dictionary of tensors; save a state_dict with torch.save.")
    return state
