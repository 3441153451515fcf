"""Pictures of any kind to the tensors that networks read."""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor

from aquamam.errors import InputError

ImageInput: TypeAlias = Tensor | Image.Image | Sequence[Tensor | Image.Image]


def to_rgb(image: Image.Image) -> Image.Image:
    """Any PIL image as upright 8-bit RGB: EXIF orientation applied, 16 bits scaled down, transparency laid over white."""
    image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        values = np.asarray(image, dtype=np.float64)
        top = 65535.0 if image.mode != "F" or values.max(initial=0) > 1 else 1.0
        image = Image.fromarray(np.clip(values / top * 255 + 0.5, 0, 255).astype(np.uint8), "L")
    if image.has_transparency_data:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        image = Image.alpha_composite(white, image)
    return image.convert("RGB")


def pil_to_tensor(image: Image.Image, channels: int, size: tuple[int, int]) -> Tensor:
    """Upright, resized with antialiasing, uint8 (channels, H, W)."""
    image = to_rgb(image)
    if channels == 1:
        image = image.convert("L")
    if image.size != (size[1], size[0]):
        image = image.resize((size[1], size[0]), Image.Resampling.BICUBIC, reducing_gap=3.0)
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if channels == 1 else pixels.permute(2, 0, 1)


def as_image_batch(images: ImageInput, *, channels: int, size: tuple[int, int]) -> Tensor:
    """Validate and stack to (B, channels, H, W). PIL images are resized; tensors must fit, since resizing them would be a guess."""
    if isinstance(images, Image.Image):
        images = [images]
    if not isinstance(images, Tensor):
        if not isinstance(images, (list, tuple)) or not all(isinstance(i, (Tensor, Image.Image)) for i in images):
            raise InputError(
                f"images must be a tensor, a PIL image or a list of them, got {type(images).__name__}; try PIL.Image.open(path)."
            )
        parts = [i if isinstance(i, Tensor) else pil_to_tensor(i, channels, size) for i in images]
        parts = [_as_float(_check(p[None], channels, size))[0] for p in parts]
        return torch.stack(parts) if parts else torch.zeros((0, channels, *size))
    return _check(images[None] if images.ndim == 3 else images, channels, size)


def _as_float(images: Tensor) -> Tensor:
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


def _check(images: Tensor, channels: int, size: tuple[int, int]) -> Tensor:
    if images.ndim != 4 or tuple(images.shape[1:]) != (channels, *size):
        raise InputError(
            f"images must have shape (B, {channels}, {size[0]}, {size[1]}), got {tuple(images.shape)}; "
            "pass PIL images to have them resized, or use torch.nn.functional.interpolate."
        )
    if images.dtype == torch.uint8:
        return images
    if not images.is_floating_point():
        raise InputError(
            f"images must be uint8 or floating point in [0, 1], got {images.dtype}; try images.to(torch.uint8)."
        )
    if images.numel():
        low, high = images.aminmax()
        if not (low >= -1e-3 and high <= 1 + 1e-3):  # also catches NaN
            raise InputError(
                f"floating-point images must lie in [0, 1], got values from {low:.4g} to {high:.4g}; try images / 255."
            )
    return images
