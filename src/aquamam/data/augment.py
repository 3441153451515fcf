"""Augmentation that is right for poses: whatever changes the picture's rotation changes the true rotation too.

Turning the image about its centre by a is exact: it is the picture of Rz(a) R. Shifts and scales are small, since
they change the direction from which a real camera would have seen the object. There are no flips: a mirrored object
is not a rotated one.
"""

import math
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from jaxtyping import Float64, Int64
from torch import Tensor

from aquamam.config import Config
from aquamam.data.base import Batch
from aquamam.data.pixels import AMOUNTS, augment_pixels
from aquamam.data.random import uniforms, words
from aquamam.errors import InputError

Positions = Int64[np.ndarray, " batch"]  # of examples in a stream


@dataclass(frozen=True, kw_only=True)
class AugmentSettings(Config):
    """How far each change goes at most; 0 leaves it out. Every example draws its own amounts."""

    called = "an augmentation"

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
            if not 0 <= getattr(self, field.name) <= most:  # nor NaN
                value = getattr(self, field.name)
                raise InputError(f"{field.name} of the augmentation must lie in 0 ... {most:g}, got {value}.")


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
    if name not in AUGMENTATIONS:
        raise InputError(f"augmentation must be one of {', '.join(AUGMENTATIONS)}, got {name!r}.")
    return AUGMENTATIONS[name]


def augment(batch: Batch, settings: AugmentSettings, *, seed: int, positions: Positions) -> Batch:
    """Change images and true rotations together; what example k gets is a pure function of (seed, positions[k]).

    Where an image ends, its border repeats.
    """
    if settings == AUGMENTATIONS["none"] or len(batch) == 0:
        return batch
    u = 2 * uniforms(seed, "augment", positions, 16) - 1
    amounts = np.zeros(len(u), AMOUNTS)
    amounts["key"] = words(seed, "augment pixels", positions, 1)[:, 0]
    amounts["turn"] = math.radians(settings.turn_deg) * u[:, 0]
    amounts["scale"] = (1 + settings.scale) ** u[:, 1]
    amounts["shift"] = settings.shift * u[:, 2:4]
    amounts["brightness"] = settings.brightness * u[:, 4]
    amounts["contrast"] = (1 + settings.contrast) ** u[:, 5]
    amounts["gain"] = (1 + settings.colour) ** u[:, 6:9]
    amounts["blur"] = settings.blur * np.abs(u[:, 9])
    amounts["noise"] = settings.noise * np.abs(u[:, 10])
    amounts["occluders"] = np.floor((u[:, 12] + 1) / 2 * (settings.occluders + 1))
    pixels = augment_pixels(batch.images.numpy(), amounts, occluder_size=settings.occluder_size)
    angles = torch.from_numpy(amounts["turn"].copy())
    rotations = turn(batch.rotations.double(), angles).to(batch.rotations.dtype)
    return replace(batch, images=torch.from_numpy(pixels), rotations=rotations)


def turn(q: Float64[Tensor, "batch equivalents 4"], angles: Float64[Tensor, " batch"]) -> Float64[Tensor, "..."]:
    """Rz(angle) R as canonical xyzw quaternions: the object turns anticlockwise as the camera sees it."""
    half = (angles / 2)[:, None, None]
    x, y, z, w = q.split(1, -1)
    turned = half.cos() * q + half.sin() * torch.cat([-y, x, w, -z], -1)
    return torch.where(turned[..., 3:] < 0, -turned, turned)
