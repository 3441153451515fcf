"""Augmentation that is right for poses: whatever changes the picture's rotation changes the true rotation too.

Rolling the image about its centre by a is exact: it is the picture of Rz(a) R. Shifts and scales are small, since
they change the direction from which a real camera would have seen the object. There are no flips: a mirrored object
is not a rotated one. Pixels are changed by a few small compiled loops, all randomness from the image's key.
"""

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from aquamam.data.base import Batch
from aquamam.data.random import uniforms, words
from aquamam.errors import require
from aquamam.geometry.rotations import multiply, rotvec_to_quat
from aquamam.rendering.lights import next_word, uniform
from aquamam.rendering.raster import compiled
from aquamam.rendering.sensor import blur

AMOUNTS = np.dtype(  # what one image is changed by
    [
        ("key", np.uint64),  # of its own random numbers
        ("turn", np.float64),  # radians, anticlockwise as seen
        ("scale", np.float64),
        ("shift", np.float64, 2),  # x right, y up, in pixels
        ("brightness", np.float64),  # of 255
        ("contrast", np.float64),
        ("gain", np.float64, 3),  # of each channel
        ("blur", np.float64),  # standard deviation, in pixels
        ("noise", np.float64),  # standard deviation, of 255
        ("occluders", np.int64),
        ("occluder_size", np.float64),  # the largest half-axis, in pixels
    ]
)


@dataclass(frozen=True, kw_only=True)
class AugmentSettings:
    """How far each change goes at most; 0 leaves it out. Every example draws its own amounts."""

    turn_deg: float = 0.0  # in the image plane, either way; R turns along
    shift: float = 0.0  # of the image's side, either way in x and y
    scale: float = 0.0  # from 1 / (1 + scale) to 1 + scale
    brightness: float = 0.0  # added or taken, of full white
    contrast: float = 0.0  # about the image's mean, from 1 / (1 + contrast) to 1 + contrast
    colour: float = 0.0  # of each channel, from 1 / (1 + colour) to 1 + colour
    blur: float = 0.0  # standard deviation, of the image's side
    noise: float = 0.0  # standard deviation, of full white
    occluders: int = 0  # patches laid over the image
    occluder_size: float = 0.25  # their largest half-axis, of the image's side

    def __post_init__(self) -> None:
        for field, most in zip(fields(AugmentSettings), (180, 0.5, 1, 1, 4, 4, 0.05, 1, 16, 0.5), strict=True):
            value = getattr(self, field.name)
            require(0 <= value <= most, f"{field.name} of the augmentation must lie in 0 ... {most:g}, got {value}.")


AUGMENTATIONS: dict[str, AugmentSettings] = {
    "none": AugmentSettings(),
    "mild": AugmentSettings(
        turn_deg=15.0, shift=0.03, scale=0.06, brightness=0.08, contrast=0.15, colour=0.08, blur=0.006, noise=0.02
    ),
    "strong": AugmentSettings(
        turn_deg=180.0,
        shift=0.08,
        scale=0.2,
        brightness=0.2,
        contrast=0.5,
        colour=0.3,
        blur=0.015,
        noise=0.06,
        occluders=3,
    ),
}


def augmentation(name: str) -> AugmentSettings:
    require(name in AUGMENTATIONS, f"augmentation must be one of {', '.join(AUGMENTATIONS)}, got {name!r}.")
    return AUGMENTATIONS[name]


def augment(batch: Batch, settings: AugmentSettings, *, seed: int, positions: Int64[np.ndarray, " batch"]) -> Batch:
    """Change images and true rotations together; what example k gets is a pure function of (seed, positions[k]).

    Where an image ends, its border repeats.
    """
    if settings == AUGMENTATIONS["none"] or len(batch) == 0:
        return batch
    side = float(min(batch.images.shape[2:]))
    u = 2 * uniforms(seed, "augment", positions, 16) - 1
    amounts = np.zeros(len(u), AMOUNTS)
    amounts["key"] = words(seed, "augment pixels", positions, 1)[:, 0]
    amounts["turn"] = math.radians(settings.turn_deg) * u[:, 0]
    amounts["scale"] = (1 + settings.scale) ** u[:, 1]
    amounts["shift"] = settings.shift * u[:, 2:4] * side
    amounts["brightness"] = settings.brightness * u[:, 4] * 255
    amounts["contrast"] = (1 + settings.contrast) ** u[:, 5]
    amounts["gain"] = (1 + settings.colour) ** u[:, 6:9]
    amounts["blur"] = settings.blur * np.abs(u[:, 9]) * side
    amounts["noise"] = settings.noise * np.abs(u[:, 10]) * 255
    amounts["occluders"] = np.floor((u[:, 12] + 1) / 2 * (settings.occluders + 1))
    amounts["occluder_size"] = settings.occluder_size * side
    about_z = torch.from_numpy(amounts["turn"][:, None] * np.array([0.0, 0.0, 1.0]))
    rotations = multiply(rotvec_to_quat(about_z)[:, None], batch.rotations.double()).to(batch.rotations.dtype)
    pixels = augment_pixels(batch.images.numpy(), amounts)
    windows = None if batch.windows is None else _moved(batch.windows, amounts, batch.images.shape)
    return replace(batch, images=torch.from_numpy(pixels), rotations=rotations, windows=windows)


def _moved(windows: Tensor, amounts: np.ndarray, shape: torch.Size) -> Tensor:
    """Windows (x right, y down, in shares of the side) after the same turn, scale and shift, as `_warp` has them."""
    x, y, b = windows.double().numpy().T
    cos, sin = amounts["scale"] * np.cos(amounts["turn"]), amounts["scale"] * np.sin(amounts["turn"])
    right, up = (amounts["shift"] / np.array([shape[3], shape[2]])).T
    moved = np.stack([cos * x + sin * y + right, cos * y - sin * x - up, b + np.log(amounts["scale"])], -1)
    return torch.from_numpy(moved).to(windows.dtype)


def augment_pixels(images: UInt8[np.ndarray, "n 3 h w"], amounts: np.ndarray) -> UInt8[np.ndarray, "n 3 h w"]:
    """Copies that are warped, covered, recoloured, blurred and made noisy, in this order; `amounts` has a row each."""
    out = np.empty(images.shape, np.uint8)
    for image, one, target in zip(np.ascontiguousarray(images), amounts, out):
        _augment(image, one, target)
    return out


@compiled
def _warp(image, turn, scale, shift, work):
    """Bilinear samples at the place where each pixel's content comes from, p = Rz(-turn) (p' - shift) / scale; beyond
    the border it repeats."""
    _, height, width = image.shape
    cos, sin = math.cos(turn) / scale, math.sin(turn) / scale
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    for row in range(height):
        y = middle_y - row - shift[1]
        for column in range(width):
            x = column - middle_x - shift[0]
            from_x = min(max(middle_x + cos * x + sin * y, 0.0), width - 1.0)
            from_y = min(max(middle_y - (cos * y - sin * x), 0.0), height - 1.0)
            j, i = int(from_x), int(from_y)
            fx, fy = from_x - j, from_y - i
            j1, i1 = min(j + 1, width - 1), min(i + 1, height - 1)
            a, b, d, e = (1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx
            for c in range(3):
                upper, lower = a * image[c, i, j] + b * image[c, i, j1], d * image[c, i1, j]
                work[c, row, column] = upper + lower + e * image[c, i1, j1]


@compiled
def _cover(state, work, largest):
    """Lay one ellipse or rectangle of one colour over the image."""
    _, height, width = work.shape
    middle_x, middle_y = uniform(state, 0.0, width), uniform(state, 0.0, height)
    half_x, half_y = uniform(state, 0.2 * largest, largest), uniform(state, 0.2 * largest, largest)
    angle = uniform(state, 0.0, math.pi)
    cos, sin = math.cos(angle), math.sin(angle)
    round_ = uniform(state, 0.0, 1.0) < 0.5
    red, green, blue = uniform(state, 0.0, 255.0), uniform(state, 0.0, 255.0), uniform(state, 0.0, 255.0)
    reach = math.sqrt(half_x * half_x + half_y * half_y)
    for row in range(max(0, int(middle_y - reach)), min(height, int(middle_y + reach) + 1)):
        for column in range(max(0, int(middle_x - reach)), min(width, int(middle_x + reach) + 1)):
            x, y = column - middle_x, row - middle_y
            u, v = (cos * x + sin * y) / half_x, (cos * y - sin * x) / half_y
            if (u * u + v * v if round_ else max(abs(u), abs(v))) <= 1:
                work[0, row, column], work[1, row, column], work[2, row, column] = red, green, blue


@compiled
def _finish(state, work, noise, out):
    """Add noise and round to bytes; four 16-bit pieces of a word add up to a nearly normal number."""
    amount = np.float32(noise * math.sqrt(3.0) / 65536)  # their standard deviation is 65536 / sqrt(3)
    low = np.uint64(0xFFFF)
    for c in range(3):
        for row in range(work.shape[1]):
            for column in range(work.shape[2]):
                value = work[c, row, column] + np.float32(0.5)
                if noise > 0:
                    x = next_word(state)
                    lower, upper = (x & low) + ((x >> np.uint64(16)) & low), (x >> np.uint64(32)) & low
                    pieces = lower + upper + (x >> np.uint64(48))
                    value += amount * (np.float32(pieces) - np.float32(131070))
                out[c, row, column] = np.uint8(min(max(value, np.float32(0)), np.float32(255)))


@compiled
def _augment(image, one, out):
    work, spare = np.empty(image.shape, np.float32), np.empty(image.shape, np.float32)
    state = np.array([one.key], np.uint64)
    _warp(image, one.turn, one.scale, one.shift, work)
    for _ in range(one.occluders):
        _cover(state, work, one.occluder_size)
    for c in range(3):  # (x - mean) contrast gain + mean gain + brightness
        rest = np.float32(work[c].mean() * one.gain[c] * (1 - one.contrast) + one.brightness)
        work[c] = np.float32(one.contrast * one.gain[c]) * work[c] + rest
    if one.blur > 0.25:  # pixels; less cannot be seen
        blur(work, spare, one.blur)
    _finish(state, work, one.noise, out)
