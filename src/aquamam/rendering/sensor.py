"""From light to bytes as a camera does it: defocus, motion, exposure, white balance, noise, tone curve, colour,
sharpening, resampling, JPEG.
"""

import math

import numpy as np

from aquamam.rendering.lights import log_uniform, next_word, tint, uniform
from aquamam.rendering.raster import compiled

CURVE = 512  # steps of a tone curve
CLEAN = 0.15  # share of pictures without noise, as renderers make them
# JPEG's own tables (annex K), for brightness and for colour
_LUMINANCE = (
    "16 11 10 16 24 40 51 61 12 12 14 19 26 58 60 55 14 13 16 24 40 57 69 56 14 17 22 29 51 87 80 62 "
    "18 22 37 56 68 109 103 77 24 35 55 64 81 104 113 92 49 64 78 87 103 121 120 101 72 92 95 98 112 100 103 99"
)
_CHROMINANCE = (
    "17 18 24 47 99 99 99 99 18 21 26 66 99 99 99 99 24 26 56 99 99 99 99 99 47 66 99 99 99 99 99 99 " + "99 " * 32
)
QUANTISERS = np.array([[int(x) for x in table.split()] for table in (_LUMINANCE, _CHROMINANCE)], np.float32)
QUANTISERS = QUANTISERS.reshape(2, 8, 8)
COSINES = np.array(
    [[math.sqrt((1 + (k > 0)) / 8) * math.cos((2 * n + 1) * k * math.pi / 16) for n in range(8)] for k in range(8)],
    np.float32,
)


@compiled
def blur(work, spare, sigma):
    """Gaussian blur, rows and then columns; the border repeats."""
    _, height, width = work.shape
    reach = math.ceil(2.5 * sigma)
    weights = np.empty(2 * reach + 1, np.float32)
    for k in range(2 * reach + 1):
        weights[k] = math.exp(-0.5 * ((k - reach) / sigma) ** 2)
    weights /= weights.sum()
    line = np.empty(width + 2 * reach, np.float32)
    for c in range(work.shape[0]):
        for row in range(height):
            for column in range(width + 2 * reach):
                line[column] = work[c, row, min(max(column - reach, 0), width - 1)]
            spare[c, row] = 0
            for k in range(2 * reach + 1):
                for column in range(width):
                    spare[c, row, column] += weights[k] * line[column + k]
        work[c] = 0
        for row in range(height):
            for k in range(2 * reach + 1):
                source = min(max(row + k - reach, 0), height - 1)
                for column in range(width):
                    work[c, row, column] += weights[k] * spare[c, source, column]


@compiled
def _move(state, work, spare, length):
    """Motion blur along a line of so many pixels."""
    _, height, width = work.shape
    angle = uniform(state, 0.0, math.pi)
    steps = max(2, math.ceil(2.0 * length))
    for c in range(3):
        spare[c] = 0
        for k in range(steps):
            along = (k / (steps - 1) - 0.5) * length
            dx, dy = round(along * math.cos(angle)), round(along * math.sin(angle))
            for row in range(height):
                source = min(max(row + dy, 0), height - 1)
                for column in range(width):
                    spare[c, row, column] += work[c, source, min(max(column + dx, 0), width - 1)]
        work[c] = spare[c] / steps


@compiled
def _transform(plane, matrix, spare):
    """Every 8 x 8 block B of a plane becomes M B M^T: columns of the whole plane at once, then rows."""
    height, width = plane.shape
    transposed = matrix.T.copy()
    spare[:] = 0
    for top in range(0, height, 8):
        for i in range(8):
            for k in range(8):
                for column in range(width):
                    spare[top + i, column] += matrix[i, k] * plane[top + k, column]
    plane[:] = 0
    for row in range(height):
        for left in range(0, width, 8):
            for k in range(8):
                for j in range(8):
                    plane[row, left + j] += spare[row, left + k] * transposed[k, j]


@compiled
def jpeg(work, spare, quality):
    """What JPEG of this quality leaves of values from 0 to 255, in place; sides are multiples of eight."""
    _, height, width = work.shape
    scale = np.float32(0.01 * (5000.0 / quality if quality < 50 else 200.0 - 2.0 * quality))
    r, g, b = work[0], work[1], work[2]
    y = np.float32(0.299) * r + np.float32(0.587) * g + np.float32(0.114) * b
    work[1] = (b - y) * np.float32(0.564)
    work[2] = (r - y) * np.float32(0.713)
    work[0] = y - np.float32(128)
    for c in range(3):
        _transform(work[c], COSINES, spare[c])
        for row in range(height):
            steps = np.maximum(QUANTISERS[min(c, 1), row % 8] * scale, np.float32(1))
            for column in range(width):
                step = steps[column % 8]
                work[c, row, column] = step * np.floor(work[c, row, column] / step + np.float32(0.5))
        _transform(work[c], COSINES.T, spare[c])
    y, cb, cr = work[0] + np.float32(128), work[1], work[2]
    work[0] = y + cr / np.float32(0.713)
    work[2] = y + cb / np.float32(0.564)
    work[1] = (y - np.float32(0.299) * work[0] - np.float32(0.114) * work[2]) / np.float32(0.587)


@compiled
def _add_noise(state, work, photons, readout):
    """Noise of photons, whose variance grows with the light, and of the sensor; four 16-bit pieces of a word are
    nearly normal.
    """
    low, share = np.uint64(0xFFFF), np.float32(math.sqrt(3.0) / 65536)
    values = work.reshape(-1)
    for k in range(values.size):
        x = next_word(state)
        pieces = (x & low) + ((x >> np.uint64(16)) & low) + ((x >> np.uint64(32)) & low) + (x >> np.uint64(48))
        normal = share * (np.float32(pieces) - np.float32(131070))
        value = max(values[k], np.float32(0))
        values[k] = value + normal * np.float32(math.sqrt(photons * value + readout * readout))


@compiled
def _develop(state, work):
    """Light to values from 0 to 255 along a tone curve: a gamma, bent towards an S, above some black."""
    gamma, bend, black = 1.0 / uniform(state, 1.7, 2.6), uniform(state, 0.0, 0.6), uniform(state, 0.0, 0.06)
    x = (np.arange(CURVE + 2) / CURVE) ** (2.0 * gamma)  # by the root of the light, in which it is nearly straight
    x += bend * (x * x * (3.0 - 2.0 * x) - x)
    curve = (255.0 * (black + (1.0 - black) * x)).astype(np.float32)
    values = work.reshape(-1)
    for k in range(values.size):
        place = np.float32(CURVE) * np.float32(math.sqrt(min(max(values[k], np.float32(0)), np.float32(1))))
        below = int(place)
        values[k] = curve[below] + (place - np.float32(below)) * (curve[below + 1] - curve[below])


@compiled
def expose(state, work, spare, exposure, pixels, out):
    """Linear light to the bytes of a photograph whose side had `pixels` pixels before it was resized to what it has
    here.
    """
    side = work.shape[1]
    enlarged = side / pixels  # above one: few pixels were made many
    softness = uniform(state, 0.25, 0.6) * max(enlarged, 1.0)
    if uniform(state, 0.0, 1.0) < 0.35:
        softness = math.hypot(softness, log_uniform(state, 0.3, 0.03 * side))
    if uniform(state, 0.0, 1.0) < 0.2:
        _move(state, work, spare, log_uniform(state, 1.5, 0.1 * side))
    colour = tint(state, 0.22)
    for c in range(3):
        work[c] *= np.float32(exposure * colour[c])
    shrunk = min(enlarged, 1.0)  # many pixels made few average their noise
    if uniform(state, 0.0, 1.0) > CLEAN:
        _add_noise(state, work, log_uniform(state, 1e-5, 4e-3) * shrunk**2, log_uniform(state, 1e-3, 2e-2) * shrunk)
    if softness > 0.3:
        blur(work, spare, softness)
    _develop(state, work)
    saturation = np.float32(log_uniform(state, 0.7, 1.7))
    grey = (work[0] + work[1] + work[2]) / np.float32(3)
    for c in range(3):
        work[c] = grey + saturation * (work[c] - grey)
    if uniform(state, 0.0, 1.0) < 0.5:  # unsharp masking: cameras give edges dark and bright seams
        sigma, amount = uniform(state, 0.6, 1.4) * max(enlarged, 0.7), np.float32(log_uniform(state, 0.2, 2.5))
        before = work.copy()
        blur(work, spare, sigma)
        work[:] = before + amount * (before - work)
    work[:] = np.minimum(np.maximum(work, np.float32(0)), np.float32(255))
    if side % 8 == 0 and uniform(state, 0.0, 1.0) < 0.5:
        jpeg(work, spare, uniform(state, 40.0, 96.0))
    out[:] = np.minimum(np.maximum(work + np.float32(0.5), np.float32(0)), np.float32(255)).astype(np.uint8)
