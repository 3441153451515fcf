"""How a part's surface differs from its mesh, drawn for each picture: shifted colours, stains, dents in its normals.

Scans have baked-in light and blurred paint, CAD has none, and real parts are dirty. What is learnt must not hang on any
of that. Stains and dents are sums of a few waves through the part, told for each vertex.
"""

import math

import numpy as np

from aquamam.rendering.lights import direction, log_uniform, uniform
from aquamam.rendering.raster import compiled

WAVES = 4
COLUMNS = 7  # of each vertex: the lamp's light that reaches it, three gains of colour, three of the dent


@compiled
def draw_wear(state, vertices, radius, wear):
    """Fill gains (columns 1 to 3) and dents (4 to 6) of every vertex."""
    wear[:, 1:4] = 0.0
    wear[:, 4:] = 0.0
    stained, dented = uniform(state, 0.0, 1.0) < 0.7, uniform(state, 0.0, 1.0) < 0.5
    stain, dent = log_uniform(state, 0.05, 0.5), log_uniform(state, 0.02, 0.25)
    colours = np.empty(3)
    for _ in range(WAVES):
        x, y, z = direction(state)
        size, phase = log_uniform(state, 1.0, 12.0) / radius, uniform(state, 0.0, 2.0 * math.pi)
        common = uniform(state, -1.0, 1.0)
        for c in range(3):
            colours[c] = stain * (common + 0.3 * uniform(state, -1.0, 1.0)) if stained else 0.0
        depth = dent * uniform(state, 0.3, 1.0) if dented else 0.0
        for v in range(vertices.shape[0]):
            angle = size * (x * vertices[v, 0] + y * vertices[v, 1] + z * vertices[v, 2]) + phase
            sine, cosine = math.sin(angle), math.cos(angle)
            for c in range(3):
                wear[v, 1 + c] += colours[c] * sine
            wear[v, 4] += depth * x * cosine
            wear[v, 5] += depth * y * cosine
            wear[v, 6] += depth * z * cosine
    for v in range(vertices.shape[0]):
        for c in range(1, 4):
            wear[v, c] = math.exp(wear[v, c])


@compiled
def draw_paint(state, paint):
    """How the part's colours are changed: three gains, an exponent, a saturation."""
    gain = log_uniform(state, 0.75, 1.3)
    for c in range(3):
        paint[c] = gain * math.exp(uniform(state, -0.12, 0.12))
    paint[3] = log_uniform(state, 0.75, 1.35)
    paint[4] = uniform(state, 0.6, 1.3)


@compiled
def repaint(paint, red, green, blue):
    """Linear light of a colour from 0 to 255 after the changes."""
    r, g, b = (red / 255.0) ** (2.2 * paint[3]), (green / 255.0) ** (2.2 * paint[3]), (blue / 255.0) ** (2.2 * paint[3])
    grey = (r + g + b) / 3.0
    r, g, b = grey + paint[4] * (r - grey), grey + paint[4] * (g - grey), grey + paint[4] * (b - grey)
    return max(paint[0] * r, 0.0), max(paint[1] * g, 0.0), max(paint[2] * b, 0.0)
