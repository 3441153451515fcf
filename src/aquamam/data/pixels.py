"""The compiled part of augmentation: one pass of small loops over each image, all randomness from the image's key."""

import math
from typing import no_type_check

import numpy as np
from jaxtyping import Bool, Float64, Int64, UInt8, UInt64

try:
    import numba
except ImportError:  # pragma: no cover - the same loops in plain Python, hundreds of times slower
    numba = None  # type: ignore[assignment]


def _compiled(function):
    if numba is None:
        return function
    try:
        return numba.njit(function, cache=True, nogil=True, error_model="numpy", fastmath=False)
    except RuntimeError:  # no writable place for compiled code
        return numba.njit(function, nogil=True, error_model="numpy", fastmath=False)


def augment_pixels(
    images: UInt8[np.ndarray, "n 3 h w"],
    *,
    keys: UInt64[np.ndarray, " n"],
    turns: Float64[np.ndarray, " n"],
    scales: Float64[np.ndarray, " n"],
    shifts: Float64[np.ndarray, "n 2"],
    brightness: Float64[np.ndarray, " n"],
    contrasts: Float64[np.ndarray, " n"],
    gains: Float64[np.ndarray, "n 3"],
    blurs: Float64[np.ndarray, " n"],
    noises: Float64[np.ndarray, " n"],
    replaced: Bool[np.ndarray, " n"],
    occluders: Int64[np.ndarray, " n"],
    occluder_size: float,
    background: tuple[int, int, int] | None,
) -> UInt8[np.ndarray, "n 3 h w"]:
    """Warp, replace the background, cover, recolour, blur and add noise, in this order.

    Turns are radians anticlockwise as seen; shifts (x right, y up), blurs and `occluder_size` are fractions of the
    shorter side, brightness and noise of full white. The images given are not changed.
    """
    images = np.ascontiguousarray(images)
    out = np.empty_like(images)
    known = background is not None
    plain = np.array(background if known else (0, 0, 0), np.float32)
    side = float(min(images.shape[2:]))
    _augment_all(
        images, keys, turns, scales, shifts * side, 255 * brightness, contrasts, gains, blurs * side, 255 * noises,
        replaced & known, occluders, occluder_size * side, known, plain, out,
    )  # fmt: skip
    return out


@_compiled
@no_type_check
def _next(state):
    """A 64-bit word of the image's own SplitMix64 generator."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    x = state[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@_compiled
@no_type_check
def _uniform(state):
    return (_next(state) >> np.uint64(11)) * 2.0**-53


@_compiled
@no_type_check
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
        if mask[row, column] == 0:
            continue
        far = 0.0
        for c in range(3):
            far = max(far, abs(image[c, row, column] - plain[c]))
        if far > 2:  # grey levels: a rendered background is exact, a JPEG's is not
            continue
        mask[row, column] = 0
        if row > 0 and mask[row - 1, column] == 1:
            stack[top] = (row - 1) * width + column
            top += 1
        if row < height - 1 and mask[row + 1, column] == 1:
            stack[top] = (row + 1) * width + column
            top += 1
        if column > 0 and mask[row, column - 1] == 1:
            stack[top] = row * width + column - 1
            top += 1
        if column < width - 1 and mask[row, column + 1] == 1:
            stack[top] = row * width + column + 1
            top += 1


@_compiled
@no_type_check
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
            edge = False
            for i in range(top, bottom):
                for j in range(left, right):
                    edge = edge or mask[i, j] == 0
            if not edge:
                continue
            far, inner_row, inner_column = 0.0, row, column
            for i in range(top, bottom):
                for j in range(left, right):
                    if mask[i, j] == 0:
                        continue
                    distance = 0.0
                    for c in range(3):
                        distance += (image[c, i, j] - plain[c]) ** 2
                    if distance > far:
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
    for row in range(height):
        for column in range(width):
            mask[row, column] = abs(mask[row, column])


@_compiled
@no_type_check
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
                work[c, row, column] = (
                    a * image[c, i, j] + b * image[c, i, j1] + d * image[c, i1, j] + e * image[c, i1, j1]
                )
            if masked:
                warped[row, column] = a * mask[i, j] + b * mask[i, j1] + d * mask[i1, j] + e * mask[i1, j1]


@_compiled
@no_type_check
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


@_compiled
@no_type_check
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
                work[0, row, column] = red
                work[1, row, column] = green
                work[2, row, column] = blue


@_compiled
@no_type_check
def _recolour(work, brightness, contrast, gain):
    """(x - mean) contrast gain + mean gain + brightness, for each channel."""
    for c in range(3):
        mean = work[c].mean()
        factor = np.float32(contrast * gain[c])
        rest = np.float32(mean * gain[c] * (1 - contrast) + brightness)
        for row in range(work.shape[1]):
            for column in range(work.shape[2]):
                work[c, row, column] = factor * work[c, row, column] + rest


@_compiled
@no_type_check
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
        for row in range(height):
            for column in range(width):
                work[c, row, column] = 0
            for k in range(2 * reach + 1):
                source = min(max(row + k - reach, 0), height - 1)
                for column in range(width):
                    work[c, row, column] += weights[k] * spare[c, source, column]


@_compiled
@no_type_check
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
                    pieces = (
                        (x & low) + ((x >> np.uint64(16)) & low) + ((x >> np.uint64(32)) & low) + (x >> np.uint64(48))
                    )
                    value += amount * (np.float32(pieces) - np.float32(131070))
                out[c, row, column] = np.uint8(min(max(value, np.float32(0)), np.float32(255)))


@_compiled
@no_type_check
def _augment_all(
    images, keys, turns, scales, shifts, brightness, contrasts, gains, blurs, noises, replaced, occluders, largest,
    known, plain, out,
):  # fmt: skip
    n, _, height, width = images.shape
    work = np.empty((3, height, width), np.float32)
    spare = np.empty((3, height, width), np.float32)
    clean = np.empty((3, height, width), np.uint8)
    mask = np.empty((height, width), np.float32)
    warped = np.empty((height, width), np.float32)
    stack = np.empty(5 * height * width + 4 * (height + width), np.int64)
    state = np.empty(1, np.uint64)
    for n_ in range(n):
        state[0] = keys[n_]
        if replaced[n_]:
            _find_object(images[n_], plain, mask, stack)
            _unmix(images[n_], plain, mask, clean)
            _warp(clean, mask, True, turns[n_], scales[n_], shifts[n_], known, plain, work, warped)
            _paint_background(state, work, warped)
        else:
            _warp(images[n_], mask, False, turns[n_], scales[n_], shifts[n_], known, plain, work, warped)
        for _ in range(occluders[n_]):
            _cover(state, work, largest)
        _recolour(work, brightness[n_], contrasts[n_], gains[n_])
        if blurs[n_] > 0.25:  # pixels; less cannot be seen
            _blur(work, spare, blurs[n_])
        _finish(state, work, noises[n_], out[n_])
