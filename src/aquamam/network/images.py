"""Pictures of any kind to the tensors that networks read."""

import os
import struct
import zlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Int64
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor

from aquamam.errors import InputError

ImageInput: TypeAlias = Tensor | Image.Image | Sequence[Tensor | Image.Image]

# what decoders raise on damaged files
BROKEN = (OSError, SyntaxError, ValueError, EOFError, IndexError, OverflowError, struct.error, zlib.error)

# What is looked for in a folder; a file that is named is read whatever its ending.
ENDINGS = (".png", ".jpg", ".jpeg", ".webp", ".bmp", ".tif", ".tiff", ".gif", ".ppm", ".pgm", ".avif", ".jp2")


def find_images(paths: Iterable[str | os.PathLike[str]]) -> list[Path]:
    """Image files: those that are named, and those in folders that are named, at any depth and sorted."""
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.is_dir():
            found.append(path)
            continue
        inside = [p for p in sorted(path.rglob("*")) if p.suffix.lower() in ENDINGS and not p.name.startswith(".")]
        if not inside:
            raise InputError(f"a folder must hold images ({', '.join(ENDINGS)}), and {path} holds none.")
        found += inside
    return found


def read_image(path: str | os.PathLike[str]) -> Image.Image:
    """An image file as upright 8-bit RGB; whatever is wrong with the file is told in one sentence."""
    name = os.fspath(path)
    try:
        with Image.open(path) as file:
            return to_rgb(file)
    except FileNotFoundError:
        raise InputError(f"there is no image at {name}.") from None
    except IsADirectoryError:
        raise InputError(f"an image must be a file, and {name} is a folder.") from None
    except UnidentifiedImageError:
        raise InputError(f"{name} is not an image of a known kind; try PNG, JPEG, WebP, TIFF or BMP.") from None
    except Image.DecompressionBombError:
        raise InputError(f"{name} has more than {2 * (Image.MAX_IMAGE_PIXELS or 0):,} pixels; scale it down.") from None
    except BROKEN as error:
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise InputError(f"{name} cannot be read ({reason}); it may be damaged, copy it again.") from error


def to_rgb(image: Image.Image) -> Image.Image:
    """Any PIL image as upright 8-bit RGB: EXIF orientation applied, 16 bits scaled, transparency laid over white."""
    if image.format == "EPS":  # Pillow would have Ghostscript run it: PostScript is a programming language
        raise UnidentifiedImageError("PostScript is not read")
    image = ImageOps.exif_transpose(image)
    if image.mode in ("I", "F") or image.mode.startswith("I;16"):
        values = np.asarray(image, dtype=np.float64)
        values = np.nan_to_num(values, posinf=values.max(initial=0, where=np.isfinite(values)), neginf=0)
        top = 65535.0
        if not image.mode.startswith("I;16"):  # no full scale of its own: the smallest usual one that holds the values
            usual = (1.0, 255.0) if image.mode == "F" else (255.0,)
            top = next((t for t in usual if values.max(initial=0) <= t), top)
        image = Image.fromarray(np.clip(values / top * 255 + 0.5, 0, 255).astype(np.uint8))
    if image.has_transparency_data:
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image.convert("RGBA"))
    return image.convert("RGB")


def fit_to(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    """An RGB image resized with antialiasing to (height, width); sides that are too short are padded in the median
    colour of the border, since stretching would change the rotation that the picture shows."""
    height, width = size
    if image.size == (width, height):
        return image
    if 0 in image.size:
        raise InputError(f"an image must have pixels, got one of {image.width} x {image.height}.")
    scale = min(width / image.width, height / image.height)
    inner = (max(1, min(width, round(image.width * scale))), max(1, min(height, round(image.height * scale))))
    image = image.resize(inner, Image.Resampling.BICUBIC, reducing_gap=3.0)
    if inner == (width, height):
        return image
    pixels = np.asarray(image)
    border = np.concatenate([pixels[0], pixels[-1], pixels[:, 0], pixels[:, -1]])
    padded = Image.new("RGB", (width, height), tuple(np.median(border, axis=0).astype(int).tolist()))
    padded.paste(image, ((width - inner[0]) // 2, (height - inner[1]) // 2))
    return padded


def pil_to_tensor(image: Image.Image, channels: int, size: tuple[int, int]) -> Tensor:
    """Upright, fitted to the size, uint8 (channels, H, W)."""
    image = fit_to(to_rgb(image), size)
    if channels == 1:
        image = image.convert("L")
    pixels = torch.from_numpy(np.array(image))
    return pixels[None] if channels == 1 else pixels.permute(2, 0, 1)


def as_image_batch(images: ImageInput, *, channels: int, size: tuple[int, int]) -> Tensor:
    """Validate and stack to (B, channels, H, W). PIL images are resized; for tensors that would be a guess."""
    if isinstance(images, Image.Image):
        images = [images]
    if isinstance(images, (list, tuple)) and all(isinstance(i, (Tensor, Image.Image)) for i in images):
        parts = [i if isinstance(i, Tensor) else pil_to_tensor(i, channels, size) for i in images]
        parts = [as_image_batch(p[None], channels=channels, size=size) for p in parts]
        parts = [p.float() / 255 if p.dtype == torch.uint8 else p.float() for p in parts]
        return torch.cat(parts) if parts else torch.zeros((0, channels, *size))
    if not isinstance(images, Tensor):
        came = f"got {type(images).__name__}; try PIL.Image.open(path)"
        raise InputError(f"images must be a tensor, a PIL image or a list of them, {came}.")
    images = images[None] if images.ndim == 3 else images
    if images.ndim != 4 or tuple(images.shape[1:]) != (channels, *size):
        rule = f"images must have shape (B, {channels}, {size[0]}, {size[1]}), got {tuple(images.shape)}"
        raise InputError(f"{rule}; pass PIL images to have them resized, or use torch.nn.functional.interpolate.")
    if images.dtype != torch.uint8 and not images.is_floating_point():
        raise InputError(f"images must be uint8 or floating point, got {images.dtype}; try images.to(torch.uint8).")
    if images.is_floating_point() and images.numel():
        low, high = images.aminmax()
        if not (low >= -1e-3 and high <= 1 + 1e-3):  # also catches NaN
            came = f"got values from {low:.4g} to {high:.4g}; try images / 255"
            raise InputError(f"floating-point images must lie in [0, 1], {came}.")
    return images


def as_categories(categories: ImageInput, count: int) -> Int64[Tensor, "batch"]:
    """Whole numbers from 0 to count - 1, which the toy has instead of images."""
    if not isinstance(categories, Tensor) or categories.is_floating_point() or categories.ndim != 1:
        raise InputError("this model reads categories, a 1-D tensor of whole numbers, not images.")
    if len(categories) and not 0 <= int(categories.min()) <= int(categories.max()) < count:
        came = f"{int(categories.min())} to {int(categories.max())}"
        raise InputError(f"categories run from 0 to {count - 1}, got {came}.")
    return categories.long()
