"""How a part stands before the camera: how it differs from its mesh, what hides it, and the crop that a detector's box
gives.
"""

import math

import numpy as np

from aquamam.geometry.camera import MARGIN
from aquamam.rendering.lights import direction, log_uniform, uniform
from aquamam.rendering.raster import compiled

SHIFT, SCALE = 0.1, 0.15  # how far detectors' boxes are off: of the box's side, and of its size
WILD = 0.12  # share of crops that are off by much more in size


@compiled
def draw_shape(state, radius, error, stretch, wave):
    """How the part differs from its mesh: by a symmetric matrix of trace three near the identity, which neither rotates
    nor grows it, and by a wave through it (wave vector, phase, displacement).
    """
    for i in range(3):
        for j in range(i, 3):
            stretch[i, j] = stretch[j, i] = uniform(state, -error, error)
    mean = (stretch[0, 0] + stretch[1, 1] + stretch[2, 2]) / 3.0
    for i in range(3):
        stretch[i, i] += 1.0 - mean
    length, height = log_uniform(state, 1.5, 6.0) / radius, uniform(state, 0.0, 0.75 * error) * radius
    x, y, z = direction(state)
    wave[0], wave[1], wave[2], wave[3] = length * x, length * y, length * z, uniform(state, 0.0, 2.0 * math.pi)
    x, y, z = direction(state)
    wave[4], wave[5], wave[6] = height * x, height * y, height * z


@compiled
def project(vertices, R, wave, distance, p):
    """Vertices in camera coordinates after the wave, and the box (left, right, bottom, top) of their projection."""
    x0, x1, y0, y1 = np.inf, -np.inf, np.inf, -np.inf
    for k in range(vertices.shape[0]):
        x, y, z = vertices[k, 0], vertices[k, 1], vertices[k, 2]
        amount = math.sin(wave[0] * x + wave[1] * y + wave[2] * z + wave[3])
        x, y, z = x + amount * wave[4], y + amount * wave[5], z + amount * wave[6]
        p[k, 0] = R[0, 0] * x + R[0, 1] * y + R[0, 2] * z
        p[k, 1] = R[1, 0] * x + R[1, 1] * y + R[1, 2] * z
        p[k, 2] = R[2, 0] * x + R[2, 1] * y + R[2, 2] * z - distance
        u, v = -p[k, 0] / p[k, 2], -p[k, 1] / p[k, 2]
        x0, x1, y0, y1 = min(x0, u), max(x1, u), min(y0, v), max(y1, v)
    return x0, x1, y0, y1


@compiled
def draw_occluder(state, p, box, occluder):
    """Perhaps a shape before the part (x, y, half-axes, angle, round), in the plane of the projection; return the box
    of what it leaves.
    """
    x0, x1, y0, y1 = box
    occluder[2] = 0.0
    if uniform(state, 0.0, 1.0) > 0.4:
        return box
    size = max(x1 - x0, y1 - y0)
    x, y = uniform(state, x0 - 0.1 * size, x1 + 0.1 * size), uniform(state, y0 - 0.1 * size, y1 + 0.1 * size)
    half_x, half_y = log_uniform(state, 0.08, 0.5) * size, log_uniform(state, 0.08, 0.5) * size
    angle, round_ = uniform(state, 0.0, math.pi), uniform(state, 0.0, 1.0) < 0.4
    cos, sin = math.cos(angle), math.sin(angle)
    left, right, bottom, top, seen = np.inf, -np.inf, np.inf, -np.inf, 0
    for k in range(p.shape[0]):
        u, v = -p[k, 0] / p[k, 2], -p[k, 1] / p[k, 2]
        du, dv = u - x, v - y
        along, across = (cos * du + sin * dv) / half_x, (cos * dv - sin * du) / half_y
        if (along * along + across * across if round_ else max(abs(along), abs(across))) > 1.0:
            seen += 1
            left, right, bottom, top = min(left, u), max(right, u), min(bottom, v), max(top, v)
    if seen < 0.5 * p.shape[0]:
        return box
    occluder[0], occluder[1], occluder[2], occluder[3], occluder[4] = x, y, half_x, half_y, angle
    occluder[5] = 1.0 if round_ else 0.0
    return left, right, bottom, top


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
