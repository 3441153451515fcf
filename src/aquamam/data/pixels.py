"""The compiled part of augmentation: one pass of small loops over each image, all randomness from the image's key."""

import math

import numpy as np
from jaxtyping import UInt8

from aquamam.rendering.raster import compiled
from aquamam.rendering.render import mix64

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
    _augment_all(images, amounts, occluder_size * side, background is not None, plain, out)
    return out


_mix = compiled(mix64)


@compiled
def _next(state):
    """A 64-bit word of the image's own SplitMix64 generator."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    return _mix(state[0])


@compiled
def _uniform(state):
    return (_next(state) >> np.uint64(11)) * 2.0**-53


@compiled
def _find_object(image, plain, mask, stack):
    """1 where the object is: all that the plain background does not reach from the border.

    Only what is connected counts, so that dark pips on a dark ground stay part of the die.
    """
    _, height, width = image.shape
    mask[:] = 1
    top = 0
    for row in range(height):
        for column in range(width):
            if row == 0 or column == 0 or row == height - 1 or column == width - 1:
                stack[top] = row * width + column
                top += 1
    while top > 0:
        top -= 1
        row, column = divmod(stack[top], width)
        far = 0.0
        for c in range(3):
            far = max(far, abs(image[c, row, column] - plain[c]))
        if mask[row, column] == 0 or far > 2:  # grey levels: a rendered background is exact, a JPEG's is not
            continue
        mask[row, column] = 0
        for down, right in ((-1, 0), (1, 0), (0, -1), (0, 1)):
            i, j = row + down, column + right
            if 0 <= i < height and 0 <= j < width and mask[i, j] == 1:
                stack[top] = i * width + j
                top += 1


@compiled
def _unmix(image, plain, mask, clean):
    """Take the plain background out of the object's smooth edge, so that it leaves no halo on another ground.

    A pixel beside the ground that is plain + share (inner - plain), with `inner` the neighbour farthest from plain, is
    given the inner colour and that share.
    """
    _, height, width = image.shape
    for row in range(height):
        for column in range(width):
            for c in range(3):
                clean[c, row, column] = image[c, row, column]
            if mask[row, column] == 0:
                continue
            top, bottom, left, right = max(0, row - 1), min(height, row + 2), max(0, column - 1), min(width, column + 2)
            if mask[top:bottom, left:right].all():
                continue
            far, inner_row, inner_column = 0.0, row, column
            for i in range(top, bottom):
                for j in range(left, right):
                    distance = 0.0
                    for c in range(3):
                        distance += (image[c, i, j] - plain[c]) ** 2
                    if mask[i, j] != 0 and distance > far:
                        far, inner_row, inner_column = distance, i, j
            if far == 0:
                continue
            share = 0.0
            for c in range(3):
                share += (image[c, row, column] - plain[c]) * (image[c, inner_row, inner_column] - plain[c]) / far
            share = min(max(share, 0.0), 1.0)
            off = 0.0
            for c in range(3):
                mixed = plain[c] + share * (image[c, inner_row, inner_column] - plain[c])
                off = max(off, abs(image[c, row, column] - mixed))
            if off <= 10:  # grey levels; else the pixel is a colour of its own
                for c in range(3):
                    clean[c, row, column] = image[c, inner_row, inner_column]
                mask[row, column] = -share  # negative for now: neighbours must still see the object here
    mask[:] = np.abs(mask)


@compiled
def _warp(image, mask, masked, turn, scale, shift, known, plain, work, warped):
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
                for c in range(3):
                    work[c, row, column] = plain[c]
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
            if masked:
                warped[row, column] = a * mask[i, j] + b * mask[i, j1] + d * mask[i1, j] + e * mask[i1, j1]


@compiled
def _paint_background(state, work, warped):
    """A smooth random pattern behind the object: colours on a coarse grid of 2 to 8 cells a side."""
    _, height, width = work.shape
    cells = 2 + int(_next(state) % np.uint64(7))
    grid = np.empty((3, cells + 1, cells + 1), np.float32)
    span = 40 + 215 * _uniform(state)  # from nearly plain to full contrast
    for c in range(3):
        base = (255 - span) * _uniform(state)
        for i in range(cells + 1):
            for j in range(cells + 1):
                grid[c, i, j] = base + span * _uniform(state)
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
                    behind = (1 - fy) * ((1 - fx) * grid[c, i, j] + fx * grid[c, i, j + 1]) + fy * (
                        (1 - fx) * grid[c, i + 1, j] + fx * grid[c, i + 1, j + 1]
                    )
                    work[c, row, column] = cover * work[c, row, column] + (1 - cover) * behind


@compiled
def _cover(state, work, largest):
    """Lay one ellipse or rectangle of one colour over the image."""
    _, height, width = work.shape
    middle_x, middle_y = width * _uniform(state), height * _uniform(state)
    half_x, half_y = largest * (0.2 + 0.8 * _uniform(state)), largest * (0.2 + 0.8 * _uniform(state))
    angle = math.pi * _uniform(state)
    cos, sin = math.cos(angle), math.sin(angle)
    round_ = _uniform(state) < 0.5
    red, green, blue = 255 * _uniform(state), 255 * _uniform(state), 255 * _uniform(state)
    reach = math.sqrt(half_x * half_x + half_y * half_y)
    for row in range(max(0, int(middle_y - reach)), min(height, int(middle_y + reach) + 1)):
        for column in range(max(0, int(middle_x - reach)), min(width, int(middle_x + reach) + 1)):
            x, y = column - middle_x, row - middle_y
            u, v = (cos * x + sin * y) / half_x, (cos * y - sin * x) / half_y
            if (u * u + v * v if round_ else max(abs(u), abs(v))) <= 1:
                work[0, row, column], work[1, row, column], work[2, row, column] = red, green, blue


@compiled
def _recolour(work, brightness, contrast, gain):
    """(x - mean) contrast gain + mean gain + brightness, for each channel."""
    for c in range(3):
        rest = np.float32(work[c].mean() * gain[c] * (1 - contrast) + brightness)
        factor = np.float32(contrast * gain[c])
        for row in range(work.shape[1]):
            for column in range(work.shape[2]):
                work[c, row, column] = factor * work[c, row, column] + rest


@compiled
def _blur(work, spare, sigma):
    """Gaussian blur, rows and then columns; the border repeats."""
    _, height, width = work.shape
    reach = math.ceil(3 * sigma)
    weights = np.empty(2 * reach + 1, np.float32)
    for k in range(2 * reach + 1):
        weights[k] = math.exp(-0.5 * ((k - reach) / sigma) ** 2)
    weights /= weights.sum()
    for c in range(3):
        for row in range(height):
            for column in range(width):
                total = np.float32(0)
                for k in range(2 * reach + 1):
                    total += weights[k] * work[c, row, min(max(column + k - reach, 0), width - 1)]
                spare[c, row, column] = total
        work[c] = 0
        for row in range(height):
            for k in range(2 * reach + 1):
                source = min(max(row + k - reach, 0), height - 1)
                for column in range(width):
                    work[c, row, column] += weights[k] * spare[c, source, column]


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
                    x = _next(state)
                    lower, upper = (x & low) + ((x >> np.uint64(16)) & low), (x >> np.uint64(32)) & low
                    pieces = lower + upper + (x >> np.uint64(48))
                    value += amount * (np.float32(pieces) - np.float32(131070))
                out[c, row, column] = np.uint8(min(max(value, np.float32(0)), np.float32(255)))


@compiled
def _augment_all(images, amounts, largest, known, plain, out):
    _, _, height, width = images.shape
    work, spare = np.empty((3, height, width), np.float32), np.empty((3, height, width), np.float32)
    clean = np.empty((3, height, width), np.uint8)
    mask, warped = np.empty((height, width), np.float32), np.empty((height, width), np.float32)
    stack = np.empty(5 * height * width + 4 * (height + width), np.int64)
    state = np.empty(1, np.uint64)
    for n in range(len(images)):
        image, one = images[n], amounts[n]
        state[0] = one.key
        if one.replaced:
            _find_object(image, plain, mask, stack)
            _unmix(image, plain, mask, clean)
            _warp(clean, mask, True, one.turn, one.scale, one.shift, known, plain, work, warped)
            _paint_background(state, work, warped)
        else:
            _warp(image, mask, False, one.turn, one.scale, one.shift, known, plain, work, warped)
        for _ in range(one.occluders):
            _cover(state, work, largest)
        _recolour(work, one.brightness, one.contrast, one.gain)
        if one.blur > 0.25:  # pixels; less cannot be seen
            _blur(work, spare, one.blur)
        _finish(state, work, one.noise, out[n])
