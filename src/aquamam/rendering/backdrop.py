"""What is behind and before the part: noise with natural spectra, edges, stripes, other things, occluders; in linear
light.
"""

import math

import numpy as np

from aquamam.rendering.lights import log_uniform, look_up, next_word, uniform
from aquamam.rendering.raster import compiled

PLAIN = 0.08  # share of pictures before nothing but white or grey
FINEST = 32  # cells along a side of the finest octave of noise


@compiled
def _random_colour(state):
    """Pale more often than not; linear light."""
    bright, chroma = log_uniform(state, 0.02, 0.9), uniform(state, 0.0, 1.0) ** 2
    red, green = uniform(state, -1.6, 1.6), uniform(state, -1.6, 1.6)
    blue = uniform(state, -1.6, 1.6)
    return bright * math.exp(chroma * red), bright * math.exp(chroma * green), bright * math.exp(chroma * blue)


@compiled
def _add_noise(state, image, cells, amount, chroma):
    """Multiply by exponentials of smooth noise, `cells` cells along a side."""
    side, one, half = image.shape[1], np.float32(1.0), np.float32(0.5)
    grid, line = np.empty((4, cells + 2, cells + 2), np.float32), np.empty((3, cells + 2), np.float32)
    for c in range(4):
        size = amount if c == 3 else amount * chroma
        for i in range(cells + 2):
            for j in range(cells + 2):
                grid[c, i, j] = uniform(state, -size, size)
    ox, oy = uniform(state, 0.0, 1.0), uniform(state, 0.0, 1.0)
    x = np.arange(side) * cells / side + ox
    cell = x.astype(np.int32)
    place = (x - cell).astype(np.float32)
    for row in range(side):
        y = row * cells / side + oy
        i = int(y)
        fy = np.float32(y - i)
        for c in range(3):  # grey and colour together, between two rows of the grid
            for j in range(cells + 2):
                upper, lower = grid[3, i, j] + grid[c, i, j], grid[3, i + 1, j] + grid[c, i + 1, j]
                line[c, j] = upper + fy * (lower - upper)
            for column in range(side):
                j = cell[column]
                value = line[c, j] + place[column] * (line[c, j + 1] - line[c, j])  # exp(value), near enough
                image[c, row, column] *= max(one + value * (one + half * value), np.float32(0.05))


@compiled
def paint_texture(state, image):
    """Fill an image (3, side, side) with a random texture: a colour, noise in several octaves, perhaps stripes."""
    image[0], image[1], image[2] = _random_colour(state)
    amount, falloff, chroma = log_uniform(state, 0.05, 1.2), uniform(state, 0.5, 1.1), uniform(state, 0.0, 0.5)
    cells = 1
    while cells <= FINEST:
        _add_noise(state, image, cells, amount, chroma)
        amount *= falloff
        cells *= 2 + int(uniform(state, 0.0, 1.5))
    if uniform(state, 0.0, 1.0) < 0.2:
        _paint_stripes(state, image)


@compiled
def _paint_stripes(state, image):
    """Stripes or checks of another brightness."""
    side = image.shape[1]
    angle, period = uniform(state, 0.0, math.pi), log_uniform(state, 0.06, 0.6) * side
    cos, sin = math.cos(angle), math.sin(angle)
    dark, checks = log_uniform(state, 0.1, 0.8), uniform(state, 0.0, 1.0) < 0.4
    for row in range(side):
        for column in range(side):
            u, v = (cos * column + sin * row) / period, (cos * row - sin * column) / period
            on = math.floor(2.0 * u) % 2 == 0
            if checks and math.floor(2.0 * v) % 2 == 0:
                on = not on
            if on:
                for c in range(3):
                    image[c, row, column] *= dark


@compiled
def paint_shape(state, image, texture, diffuse, x, y, half_x, half_y, angle, round_):
    """Lay an ellipse or a rectangle over the image: flat, printed with random cells as labels and markers are, or lit
    like a solid thing by the map of received light.
    """
    side = image.shape[1]
    colour = _random_colour(state)
    cos, sin = math.cos(angle), math.sin(angle)
    reach = math.sqrt(half_x * half_x + half_y * half_y)
    kind = uniform(state, 0.0, 1.0)
    solid, printed = kind < 0.5, kind > 0.75
    ink, cells, word = log_uniform(state, 0.02, 0.6), log_uniform(state, 1.0, 6.0), next_word(state)
    for row in range(max(0, int(y - reach)), min(side, int(y + reach) + 1)):
        for column in range(max(0, int(x - reach)), min(side, int(x + reach) + 1)):
            dx, dy = column - x, row - y
            u, v = (cos * dx + sin * dy) / half_x, (cos * dy - sin * dx) / half_y
            inside = u * u + v * v if round_ else max(abs(u), abs(v))
            if inside > 1.0:
                continue
            red, green, blue = 1.0, 1.0, 1.0
            if solid:
                nx, ny = cos * u - sin * v, -(sin * u + cos * v)
                nz = math.sqrt(max(1.0 - nx * nx - ny * ny, 0.02))
                red, green, blue = look_up(diffuse, nx, ny, nz)
            elif printed:
                cell = 8 * int((u + 1.0) * cells * 0.5) + int((v + 1.0) * cells * 0.5)
                if (word >> np.uint64(cell % 64)) & np.uint64(1):
                    red, green, blue = ink, ink, ink
            image[0, row, column] = red * colour[0] * texture[0, row, column]
            image[1, row, column] = green * colour[1] * texture[1, row, column]
            image[2, row, column] = blue * colour[2] * texture[2, row, column]


@compiled
def paint_grain(state, image):
    """Fill an image (3, side, side) with noise about one, which gives the shapes laid over a picture their grain."""
    image[:] = 1.0
    amount = log_uniform(state, 0.05, 0.5)
    _add_noise(state, image, 3, amount, 0.3)
    _add_noise(state, image, 13, amount, 0.3)


@compiled
def paint_background(state, image, texture, diffuse, pictures):
    """Fill the image with what stands behind the part; `pictures` (n, side, side, 3) are the user's own, if there are
    any. The texture is left as grain for the shapes that follow.
    """
    side = image.shape[1]
    if uniform(state, 0.0, 1.0) < PLAIN:  # as in catalogues and drawings
        image[:] = log_uniform(state, 0.3, 3.0)
        paint_grain(state, texture)
        return
    if pictures.shape[0] > 0 and uniform(state, 0.0, 1.0) < 0.8:
        _paint_picture(state, image, pictures)
    else:
        paint_texture(state, image)
    if uniform(state, 0.0, 1.0) < 0.5:  # the edge of a table, a wall, a shelf
        paint_texture(state, texture)
        _paint_half(state, image, texture)
    paint_grain(state, texture)
    for _ in range(int(log_uniform(state, 1.0, 25.0)) if uniform(state, 0.0, 1.0) < 0.75 else 0):
        x, y = uniform(state, -0.1, 1.1) * side, uniform(state, -0.1, 1.1) * side
        half_x, half_y = log_uniform(state, 0.02, 0.4) * side, log_uniform(state, 0.02, 0.4) * side
        angle, round_ = uniform(state, 0.0, math.pi), uniform(state, 0.0, 1.0) < 0.5
        paint_shape(state, image, texture, diffuse, x, y, half_x, half_y, angle, round_)


@compiled
def _paint_half(state, image, texture):
    """One side of a straight line."""
    side = image.shape[1]
    angle = uniform(state, 0.0, 2.0 * math.pi)
    cos, sin = math.cos(angle), math.sin(angle)
    offset = uniform(state, -0.4, 0.4) * side
    for row in range(side):
        for column in range(side):
            if cos * (column - 0.5 * side) + sin * (row - 0.5 * side) > offset:
                for c in range(3):
                    image[c, row, column] = texture[c, row, column]


@compiled
def _paint_picture(state, image, pictures):
    """A part of one of the user's pictures, perhaps mirrored; its bytes are made linear light."""
    side, large = image.shape[1], pictures.shape[1]
    n = int(next_word(state) % np.uint64(pictures.shape[0]))
    part = uniform(state, 0.4, 1.0) * (large - 1)
    x0, y0 = uniform(state, 0.0, large - 1 - part), uniform(state, 0.0, large - 1 - part)
    mirrored = uniform(state, 0.0, 1.0) < 0.5
    for row in range(side):
        i = int(y0 + part * row / side)
        for column in range(side):
            j = int(x0 + part * (side - 1 - column if mirrored else column) / side)
            for c in range(3):
                value = pictures[n, i, j, c] / 255.0
                image[c, row, column] = value * value
