"""How a part stands before the camera: how it differs from its mesh, what hides it, and the crop that a detector's box
gives.
"""

import math

import numpy as np

from aquamam.geometry.camera import MARGIN
from aquamam.rendering.lights import direction, log_uniform, uniform
from aquamam.rendering.raster import compiled, place

SHIFT, SCALE = 0.1, 0.15  # how far detectors' boxes are off: of the box's side, and of its size
WILD = 0.12  # share of crops that are off by much more in size


@compiled
def draw_shape(state, radius, error):
    """How the part differs from its mesh: by a symmetric matrix of trace three near the identity, which neither rotates
    nor grows it, and by a wave through it (wave vector, phase, displacement).
    """
    stretch = np.empty((3, 3))
    for i in range(3):
        for j in range(i, 3):
            stretch[i, j] = stretch[j, i] = uniform(state, -error, error)
    mean = (stretch[0, 0] + stretch[1, 1] + stretch[2, 2]) / 3.0
    for i in range(3):
        stretch[i, i] += 1.0 - mean
    length, height = log_uniform(state, 1.5, 6.0) / radius, uniform(state, 0.0, 0.75 * error) * radius
    x, y, z = direction(state)
    phase = uniform(state, 0.0, 2.0 * math.pi)
    dx, dy, dz = direction(state)
    return stretch, (length * x, length * y, length * z, phase, height * dx, height * dy, height * dz)


@compiled
def stand(canvas, vertices, waved, R, wave, distance):
    """Place vertices before the camera after the wave, and return the box (left, right, bottom, top) of their
    projection."""
    for k in range(vertices.shape[0]):
        x, y, z = vertices[k, 0], vertices[k, 1], vertices[k, 2]
        amount = math.sin(wave[0] * x + wave[1] * y + wave[2] * z + wave[3])
        waved[k, 0], waved[k, 1], waved[k, 2] = x + amount * wave[4], y + amount * wave[5], z + amount * wave[6]
    place(canvas, waved, R, distance)
    u, v = canvas.screen[:, 0], canvas.screen[:, 1]
    return u.min(), u.max(), v.min(), v.max()


@compiled
def draw_occluder(state, screen, box):
    """Perhaps a shape before the part (x, y, half-axes, angle, round), in the plane of the projection, without extent
    if there is none; and the box of what it leaves.
    """
    x0, x1, y0, y1 = box
    none = 0.0, 0.0, 0.0, 0.0, 0.0, False
    if uniform(state, 0.0, 1.0) > 0.4:
        return none, box
    size = max(x1 - x0, y1 - y0)
    x, y = uniform(state, x0 - 0.1 * size, x1 + 0.1 * size), uniform(state, y0 - 0.1 * size, y1 + 0.1 * size)
    half_x, half_y = log_uniform(state, 0.08, 0.5) * size, log_uniform(state, 0.08, 0.5) * size
    angle, round_ = uniform(state, 0.0, math.pi), uniform(state, 0.0, 1.0) < 0.4
    cos, sin = math.cos(angle), math.sin(angle)
    left, right, bottom, top, seen = np.inf, -np.inf, np.inf, -np.inf, 0
    for k in range(screen.shape[0]):
        u, v = screen[k, 0], screen[k, 1]
        du, dv = u - x, v - y
        along, across = (cos * du + sin * dv) / half_x, (cos * dv - sin * du) / half_y
        if (along * along + across * across if round_ else max(abs(along), abs(across))) > 1.0:
            seen += 1
            left, right, bottom, top = min(left, u), max(right, u), min(bottom, v), max(top, v)
    if seen < 0.5 * screen.shape[0]:
        return none, box
    return (x, y, half_x, half_y, angle, round_), (left, right, bottom, top)


@compiled
def draw_window(state, box):
    """Middle and side of the crop that a detector's box gives, in the plane of the projection."""
    x0, x1, y0, y1 = box
    width, height = x1 - x0, y1 - y0
    x = 0.5 * (x0 + x1) + uniform(state, -SHIFT, SHIFT) * width
    y = 0.5 * (y0 + y1) + uniform(state, -SHIFT, SHIFT) * height
    scale = math.exp(uniform(state, -SCALE, SCALE))
    if uniform(state, 0.0, 1.0) < WILD:
        scale = log_uniform(state, 0.8, 1.8)
    return x, y, MARGIN * scale * max(width, height)
