"""Augmentation of pixels: a few small compiled loops over each image, all randomness from the image's key."""

import math

import numpy as np
from jaxtyping import UInt8

from aquamam.rendering.lights import next_word, uniform
from aquamam.rendering.raster import compiled
from aquamam.rendering.sensor import blur

AMOUNTS = np.dtype(  # what one image is changed by
    [
        ("key", np.uint64),  # of its own random numbers
        ("turn", np.float64),  # radians, anticlockwise as seen
        ("scale", np.float64),
        ("shift", np.float64, 2),  # x right, y up, in shorter sides of the image
        ("brightness", np.float64),  # of full white
        ("contrast", np.float64),
        ("gain", np.float64, 3),  # of each channel
        ("blur", np.float64),  # standard deviation, in shorter sides
        ("noise", np.float64),  # standard deviation, of full white
        ("occluders", np.int64),
    ]
)


def augment_pixels(
    images: UInt8[np.ndarray, "n 3 h w"], amounts: np.ndarray, *, occluder_size: float = 0.25
) -> UInt8[np.ndarray, "n 3 h w"]:
    """Warp, cover, recolour, blur and add noise, in this order; `amounts` has a row an image.

    `occluder_size` is a fraction of the shorter side. The images given are not changed.
    """
    images, amounts = np.ascontiguousarray(images), amounts.copy()
    out, side = np.empty_like(images), float(min(images.shape[2:]))
    for name, unit in (("shift", side), ("blur", side), ("brightness", 255), ("noise", 255)):
        amounts[name] *= unit
    for image, one, target in zip(images, amounts, out):
        _augment(image, one, occluder_size * side, target)
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
def _augment(image, one, largest, out):
    work, spare = np.empty(image.shape, np.float32), np.empty(image.shape, np.float32)
    state = np.array([one.key], np.uint64)
    _warp(image, one.turn, one.scale, one.shift, work)
    for _ in range(one.occluders):
        _cover(state, work, largest)
    for c in range(3):  # (x - mean) contrast gain + mean gain + brightness
        rest = np.float32(work[c].mean() * one.gain[c] * (1 - one.contrast) + one.brightness)
        work[c] = np.float32(one.contrast * one.gain[c]) * work[c] + rest
    if one.blur > 0.25:  # pixels; less cannot be seen
        blur(work, spare, one.blur)
    _finish(state, work, one.noise, out)
