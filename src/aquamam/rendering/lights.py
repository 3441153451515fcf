"""Light from all around, drawn for each picture: a few spherical Gaussians over an ambient gradient, looked up in two
small maps.

A spherical Gaussian is $a\\,e^{\\lambda(\\mu \\cdot v - 1)}$. Its product with another one integrates in closed form,
and both the cosine of a diffuse surface and the lobe of a glossy one are nearly such Gaussians. So what a surface of
any normal receives, and what it reflects from any direction, are sums over the lights, evaluated once a picture on
octahedral maps.

Which corners of a mesh light reaches is found once a mesh, from many directions: ambient light comes from the
directions of a corner's hemisphere in which nothing of the mesh stands before it, a lamp's as far as the directions
next to the lamp's see the corner, which makes soft shadows.
"""

import math

import numpy as np
from jaxtyping import Bool, Float32, Float64
from scipy.spatial.transform import Rotation

from aquamam.rendering.raster import TILE, Scene, _cover, compiled

DIFFUSE, GLOSSY = 16, 32  # texels along a side of the two maps
MOST_LIGHTS = 6
COSINE = (2.133, 1.17)  # sharpness and height of the Gaussian nearest to a clamped cosine


@compiled
def next_word(state):
    """A 64-bit word of the picture's own SplitMix64 generator."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    x = state[0]
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


@compiled
def uniform(state, low, high):
    """A number between low and high."""
    return low + (high - low) * ((next_word(state) >> np.uint64(11)) * 2.0**-53)


@compiled
def log_uniform(state, low, high):
    """A number between low and high whose logarithm is uniform."""
    return math.exp(uniform(state, math.log(low), math.log(high)))


@compiled
def direction(state):
    """A uniformly random unit vector."""
    z, angle = uniform(state, -1.0, 1.0), uniform(state, 0.0, 2.0 * math.pi)
    r = math.sqrt(max(1.0 - z * z, 0.0))
    return r * math.cos(angle), r * math.sin(angle), z


@compiled
def tint(state, most, colour):
    """A colour of brightness one between warm and cold, a little green or magenta."""
    warm, green = uniform(state, -most, most), uniform(state, -0.3 * most, 0.3 * most)
    colour[0], colour[1], colour[2] = math.exp(warm), math.exp(green), math.exp(-warm)
    total = (colour[0] + colour[1] + colour[2]) / 3.0
    for c in range(3):
        colour[c] /= total


@compiled
def _product(sharp, lobe, cosine):
    """Integral over the sphere of two spherical Gaussians of height one whose axes have this cosine."""
    length = math.sqrt(max(sharp * sharp + lobe * lobe + 2.0 * sharp * lobe * cosine, 1e-12))
    return 2.0 * math.pi * math.exp(length - sharp - lobe) * (1.0 - math.exp(-2.0 * length)) / length


@compiled
def _octahedral(i, j, side):
    """The direction of a texel."""
    x, y = 2.0 * (j + 0.5) / side - 1.0, 2.0 * (i + 0.5) / side - 1.0
    z = 1.0 - abs(x) - abs(y)
    if z < 0.0:
        x, y = (1.0 - abs(y)) * (1.0 if x >= 0 else -1.0), (1.0 - abs(x)) * (1.0 if y >= 0 else -1.0)
    norm = math.sqrt(x * x + y * y + z * z)
    return x / norm, y / norm, z / norm


@compiled
def look_up(table, x, y, z):
    """Bilinear value of an octahedral map (3, side, side) in a direction."""
    side = table.shape[1]
    total = abs(x) + abs(y) + abs(z) + 1e-12
    u, v = x / total, y / total
    if z < 0.0:
        u, v = (1.0 - abs(v)) * (1.0 if u >= 0 else -1.0), (1.0 - abs(u)) * (1.0 if v >= 0 else -1.0)
    a, b = (u + 1.0) * 0.5 * side - 0.5, (v + 1.0) * 0.5 * side - 0.5
    a, b = min(max(a, 0.0), side - 1.001), min(max(b, 0.0), side - 1.001)
    j, i = int(a), int(b)
    fx, fy = np.float32(a - j), np.float32(b - i)
    one = np.float32(1.0)
    w00, w01, w10, w11 = (one - fy) * (one - fx), (one - fy) * fx, fy * (one - fx), fy * fx
    red = w00 * table[0, i, j] + w01 * table[0, i, j + 1] + w10 * table[0, i + 1, j] + w11 * table[0, i + 1, j + 1]
    green = w00 * table[1, i, j] + w01 * table[1, i, j + 1] + w10 * table[1, i + 1, j] + w11 * table[1, i + 1, j + 1]
    blue = w00 * table[2, i, j] + w01 * table[2, i, j + 1] + w10 * table[2, i + 1, j] + w11 * table[2, i + 1, j + 1]
    return red, green, blue


@compiled
def draw_lights(state, lights):
    """Fill rows (direction, sharpness, red, green, blue) of lights; return their number. The first is the brightest."""
    colour = np.empty(3)
    count = 1 + int(uniform(state, 0.0, MOST_LIGHTS - 0.01))
    for k in range(count):
        x, y, z = direction(state)
        y, z = y + 0.7, z + 0.5  # lamps and windows are above more often than below, and before the part than behind it
        norm = math.sqrt(x * x + y * y + z * z) + 1e-9
        sharp = log_uniform(state, 1.5, 40.0) if uniform(state, 0.0, 1.0) < 0.6 else log_uniform(state, 40.0, 1000.0)
        bright = log_uniform(state, 0.3, 3.0) if k == 0 else log_uniform(state, 0.05, 0.8)
        tint(state, 0.35, colour)
        height = bright / (COSINE[1] * _product(sharp, COSINE[0], 1.0))
        lights[k, 0], lights[k, 1], lights[k, 2], lights[k, 3] = x / norm, y / norm, z / norm, sharp
        for c in range(3):
            lights[k, 4 + c] = height * colour[c]
    return count


@compiled
def draw_environment(state, roughness, first, lights, count, diffuse, glossy):
    """Fill both maps: light received by a normal and light reflected from a direction, from light number `first` on."""
    above, below = np.empty(3), np.empty(3)
    tint(state, 0.3, above)
    tint(state, 0.3, below)
    ambient = log_uniform(state, 0.15, 1.2)
    floor = uniform(state, 0.1, 1.0)
    ux, uy, uz = direction(state)
    uy += 2.0
    norm = math.sqrt(ux * ux + uy * uy + uz * uz)
    ux, uy, uz = ux / norm, uy / norm, uz / norm
    lobe = min(max(0.5 / (roughness * roughness), 0.6), 1500.0)
    whole = lobe / (2.0 * math.pi * (1.0 - math.exp(-2.0 * lobe)))
    for kind in range(2):
        table = diffuse if kind == 0 else glossy
        side = table.shape[1]
        sharp_lobe = COSINE[0] if kind == 0 else lobe
        height = COSINE[1] if kind == 0 else whole
        for i in range(side):
            for j in range(side):
                x, y, z = _octahedral(i, j, side)
                up = 0.5 + 0.5 * (x * ux + y * uy + z * uz)
                for c in range(3):
                    table[c, i, j] = ambient * (above[c] * up + floor * below[c] * (1.0 - up))
                for k in range(first, count):
                    cosine = x * lights[k, 0] + y * lights[k, 1] + z * lights[k, 2]
                    amount = height * _product(lights[k, 3], sharp_lobe, cosine)
                    for c in range(3):
                        table[c, i, j] += amount * lights[k, 4 + c]


# --- where it reaches -------------------------------------------------------------------------------------------------

DIRECTIONS, NEAREST = 96, 4  # of all, and those next to a lamp's
FAR = 20.0  # radii: nearly parallel light
SAMPLES = 128  # along a side of the depth maps


def visibility(
    scene: Scene, radius: float, normals: Float32[np.ndarray, "faces 3 3"]
) -> tuple[
    Float64[np.ndarray, "directions 3"], Bool[np.ndarray, "directions vertices"], Float32[np.ndarray, "faces 3"]
]:
    """Directions, from which of them each vertex is seen, and the share of ambient light that reaches each corner."""
    z = 1 - (2 * np.arange(DIRECTIONS) + 1) / DIRECTIONS
    angle = np.pi * (1 + 5**0.5) * np.arange(DIRECTIONS)
    directions = np.stack([np.sqrt(1 - z * z) * np.cos(angle), np.sqrt(1 - z * z) * np.sin(angle), z], -1)
    turned = np.stack([Rotation.align_vectors([[0.0, 0.0, 1.0]], one[None])[0].as_matrix() for one in directions])
    seen = np.zeros((DIRECTIONS, len(scene.vertices)), np.bool_)
    _look(scene.vertices, scene.faces, radius, turned, seen)
    facing = np.maximum(normals.astype(float) @ directions.T, 0.0)  # (faces, 3, directions)
    ambient = (facing * seen.T[scene.faces]).sum(-1) / np.maximum(facing.sum(-1), 1e-9)
    return directions, seen, ambient.astype(np.float32)


@compiled
def _look(vertices, faces, radius, rotations, seen):
    """Mark which vertices each rotation shows to a camera far away."""
    distance, count = FAR * radius, vertices.shape[0]
    step = 2.1 * radius / distance / SAMPLES
    xs = (np.arange(SAMPLES) + (0.5 - 0.5 * SAMPLES)) * step
    ys = ((0.5 * SAMPLES - 0.5) - np.arange(SAMPLES)) * step
    p, screen = np.empty((count, 3)), np.empty((count, 2))
    depth, owner = np.zeros((SAMPLES, SAMPLES), np.float32), np.full((SAMPLES, SAMPLES), -1, np.int32)
    floor = np.zeros((SAMPLES // TILE + 1, SAMPLES // TILE + 1), np.float32)
    for k in range(rotations.shape[0]):
        for v in range(count):
            for c in range(3):
                p[v, c] = (
                    rotations[k, c, 0] * vertices[v, 0]
                    + rotations[k, c, 1] * vertices[v, 1]
                    + rotations[k, c, 2] * vertices[v, 2]
                )
            p[v, 2] -= distance
            screen[v, 0], screen[v, 1] = -p[v, 0] / p[v, 2], -p[v, 1] / p[v, 2]
        depth[:] = 0.0
        owner[:] = -1
        _cover(p, screen, faces, 0.1 * radius, step, xs, ys, depth, owner, floor)
        for v in range(count):
            column = int(screen[v, 0] / step + 0.5 * SAMPLES)
            row = int(0.5 * SAMPLES - screen[v, 1] / step)
            near = -1.0 / (p[v, 2] + 0.04 * radius)  # a little nearer than the vertex, as slopes and pixels are coarse
            for i in range(max(row - 1, 0), min(row + 2, SAMPLES)):
                for j in range(max(column - 1, 0), min(column + 2, SAMPLES)):
                    seen[k, v] = seen[k, v] or depth[i, j] <= near


@compiled
def light_vertices(directions, seen, lamp, lit):
    """The share of a lamp's light that reaches each vertex: the mean over the directions next to the lamp's, which is
    given in object coordinates."""
    near = np.argsort(-(directions @ lamp))[:NEAREST]
    for v in range(seen.shape[1]):
        total = 0.0
        for k in range(NEAREST):
            total += seen[near[k], v]
        lit[v] = total / NEAREST
