"""Augmentation of pixels: a few small compiled loops over each image, all randomness from the image's key."""

import math

import numpy as np
from jaxtyping import Float32, UInt8
from numpy.lib.stride_tricks import sliding_window_view
from scipy.ndimage import binary_dilation, label

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
        ("replaced", np.bool_),  # whether the background is, if it is known
        ("occluders", np.int64),
    ]
)


def augment_pixels(
    images: UInt8[np.ndarray, "n 3 h w"],
    amounts: np.ndarray,
    *,
    occluder_size: float = 0.25,
    background: tuple[int, int, int] | None = None,
) -> UInt8[np.ndarray, "n 3 h w"]:
    """Warp, replace the background, cover, recolour, blur and add noise, in this order; `amounts` has a row an image.

    `occluder_size` is a fraction of the shorter side. The images given are not changed.
    """
    images, amounts = np.ascontiguousarray(images), amounts.copy()
    out, side = np.empty_like(images), float(min(images.shape[2:]))
    for name, unit in (("shift", side), ("blur", side), ("brightness", 255), ("noise", 255)):
        amounts[name] *= unit
    amounts["replaced"] &= background is not None
    plain = np.array(background or (0, 0, 0), np.float32)
    for image, one, target in zip(images, amounts, out):
        shares = np.empty((0, 0), np.float32)
        if one["replaced"]:
            image, shares = cut_out(image, plain)
        _augment(image, shares, one, occluder_size * side, background is not None, plain, target)
    return out


def cut_out(
    image: UInt8[np.ndarray, "3 h w"], plain: Float32[np.ndarray, "3"]
) -> tuple[UInt8[np.ndarray, "3 h w"], Float32[np.ndarray, "h w"]]:
    """The object's colours, and its share of each pixel.

    The ground is what is plain and connected to the border, so that dark pips on a dark ground stay part of the die.
    The plain colour is taken out of the object's smooth edge, so that it leaves no halo on another ground: a pixel
    beside the ground that is plain + share (inner - plain), with `inner` the neighbour farthest from plain, is given
    the inner colour and that share.
    """
    colour = image - plain[:, None, None]
    near = np.abs(colour).max(0) <= 2  # grey levels: a rendered background is exact, a JPEG's is not
    part, parts = label(near)
    outside = np.zeros(parts + 1, bool)
    for edge in (part[0], part[-1], part[:, 0], part[:, -1]):
        outside[edge] = True
    ground = near & outside[part]
    row, column = np.nonzero(binary_dilation(ground, np.ones((3, 3))) & ~ground)
    distance = np.where(ground, 0, np.square(colour).sum(0))
    around = sliding_window_view(np.pad(distance, 1), (3, 3))[row, column].reshape(-1, 9)
    down, right = np.divmod(around.argmax(-1), 3)
    inner_row, inner_column, far = row + down - 1, column + right - 1, around.max(-1)
    own, inner = colour[:, row, column], colour[:, inner_row, inner_column]
    share = np.clip((own * inner).sum(0) / np.maximum(far, 1), 0, 1)
    mixed = (np.abs(own - share * inner).max(0) <= 10) & (far > 0)  # grey levels; else a colour of its own
    clean, shares = image.copy(), (~ground).astype(np.float32)
    clean[:, row[mixed], column[mixed]] = image[:, inner_row[mixed], inner_column[mixed]]
    shares[row[mixed], column[mixed]] = share[mixed]
    return clean, shares


@compiled
def _warp(image, shares, turn, scale, shift, known, plain, work, warped):
    """Bilinear samples at the place where each pixel's content comes from, p = Rz(-turn) (p' - shift) / scale."""
    _, height, width = image.shape
    cos, sin = math.cos(turn) / scale, math.sin(turn) / scale
    middle_x, middle_y = (width - 1) / 2, (height - 1) / 2
    for row in range(height):
        y = middle_y - row - shift[1]
        for column in range(width):
            x = column - middle_x - shift[0]
            from_x = middle_x + cos * x + sin * y
            from_y = middle_y - (cos * y - sin * x)
            inside = -1 < from_x < width and -1 < from_y < height
            if known and not inside:
                work[:, row, column] = plain
                warped[row, column] = 0
                continue
            from_x = min(max(from_x, 0.0), width - 1.0)
            from_y = min(max(from_y, 0.0), height - 1.0)
            j, i = int(from_x), int(from_y)
            fx, fy = from_x - j, from_y - i
            j1, i1 = min(j + 1, width - 1), min(i + 1, height - 1)
            a, b, d, e = (1 - fy) * (1 - fx), (1 - fy) * fx, fy * (1 - fx), fy * fx
            for c in range(3):
                upper, lower = a * image[c, i, j] + b * image[c, i, j1], d * image[c, i1, j]
                work[c, row, column] = upper + lower + e * image[c, i1, j1]
            if len(shares):
                upper, lower = a * shares[i, j] + b * shares[i, j1], d * shares[i1, j] + e * shares[i1, j1]
                warped[row, column] = upper + lower


@compiled
def _paint_background(state, work, warped):
    """A smooth random pattern behind the object: colours on a coarse grid of 2 to 8 cells a side."""
    _, height, width = work.shape
    cells = 2 + int(next_word(state) % np.uint64(7))
    grid = np.empty((3, cells + 1, cells + 1), np.float32)
    span = 40 + uniform(state, 0.0, 215.0)  # from nearly plain to full contrast
    for c in range(3):
        base = uniform(state, 0.0, 255 - span)
        for i in range(cells + 1):
            for j in range(cells + 1):
                grid[c, i, j] = base + uniform(state, 0.0, span)
    for row in range(height):
        y = row * cells / height
        i = int(y)
        fy = y - i
        for column in range(width):
            cover = warped[row, column]
            if cover < 1:
                x = column * cells / width
                j = int(x)
                fx = x - j
                for c in range(3):
                    above = (1 - fx) * grid[c, i, j] + fx * grid[c, i, j + 1]
                    below = (1 - fx) * grid[c, i + 1, j] + fx * grid[c, i + 1, j + 1]
                    behind = (1 - fy) * above + fy * below
                    work[c, row, column] = cover * work[c, row, column] + (1 - cover) * behind


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
def _augment(image, shares, one, largest, known, plain, out):
    work, spare = np.empty(image.shape, np.float32), np.empty(image.shape, np.float32)
    warped = np.empty(image.shape[1:], np.float32)
    state = np.array([one.key], np.uint64)
    _warp(image, shares, one.turn, one.scale, one.shift, known, plain, work, warped)
    if one.replaced:
        _paint_background(state, work, warped)
    for _ in range(one.occluders):
        _cover(state, work, largest)
    for c in range(3):  # (x - mean) contrast gain + mean gain + brightness
        rest = np.float32(work[c].mean() * one.gain[c] * (1 - one.contrast) + one.brightness)
        work[c] = np.float32(one.contrast * one.gain[c]) * work[c] + rest
    if one.blur > 0.25:  # pixels; less cannot be seen
        blur(work, spare, one.blur)
    _finish(state, work, one.noise, out)
