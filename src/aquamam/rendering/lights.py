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

from aquamam.rendering.raster import compiled, cover, dot, new_canvas, place, set_rays
from aquamam.rendering.scene import Scene

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
def tint(state, most):
    """A colour of brightness one between warm and cold, a little green or magenta."""
    warm, green = uniform(state, -most, most), uniform(state, -0.3 * most, 0.3 * most)
    red, green, blue = math.exp(warm), math.exp(green), math.exp(-warm)
    mean = (red + green + blue) / 3.0
    return red / mean, green / mean, blue / mean


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
def draw_lights(state):
    """Rows (direction, sharpness, red, green, blue) of lights; the first is the brightest."""
    lights = np.empty((1 + int(uniform(state, 0.0, MOST_LIGHTS - 0.01)), 7))
    for k in range(lights.shape[0]):
        x, y, z = direction(state)
        y, z = y + 0.7, z + 0.5  # lamps and windows are above more often than below, and before the part than behind it
        norm = math.sqrt(x * x + y * y + z * z) + 1e-9
        sharp = log_uniform(state, 1.5, 40.0) if uniform(state, 0.0, 1.0) < 0.6 else log_uniform(state, 40.0, 1000.0)
        bright = log_uniform(state, 0.3, 3.0) if k == 0 else log_uniform(state, 0.05, 0.8)
        red, green, blue = tint(state, 0.35)
        height = bright / (COSINE[1] * _product(sharp, COSINE[0], 1.0))
        colour = height * red, height * green, height * blue
        lights[k] = np.array((x / norm, y / norm, z / norm, sharp, *colour))
    return lights


@compiled
def lobe_of(roughness):
    """Sharpness of the lobe of a glossy surface."""
    return min(max(0.5 / (roughness * roughness), 0.6), 1500.0)


@compiled
def draw_environment(state, lights, lobe, diffuse, glossy):
    """Fill both maps: light received by a normal and light reflected from a direction, of all lights but the first."""
    above, below = tint(state, 0.3), tint(state, 0.3)
    ambient = log_uniform(state, 0.15, 1.2)
    floor = uniform(state, 0.1, 1.0)
    x, y, z = direction(state)
    up = x, y + 2.0, z
    norm = math.sqrt(dot(up, up))
    up = up[0] / norm, up[1] / norm, up[2] / norm
    whole = lobe / (2.0 * math.pi * (1.0 - math.exp(-2.0 * lobe)))
    for table, sharp, height in ((diffuse, COSINE[0], COSINE[1]), (glossy, lobe, whole)):
        side = table.shape[1]
        for i in range(side):
            for j in range(side):
                towards = _octahedral(i, j, side)
                share = 0.5 + 0.5 * dot(towards, up)
                for c in range(3):
                    table[c, i, j] = ambient * (above[c] * share + floor * below[c] * (1.0 - share))
                for k in range(1, lights.shape[0]):
                    amount = height * _product(lights[k, 3], sharp, dot(towards, lights[k]))
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
    distance = FAR * radius
    step = 2.1 * radius / distance / SAMPLES
    canvas = new_canvas(vertices.shape[0], SAMPLES, SAMPLES)
    set_rays(canvas, step)
    for k in range(rotations.shape[0]):
        canvas.depth[:] = 0.0
        place(canvas, vertices, rotations[k], distance)
        cover(canvas, faces, 0.1 * radius, step)
        for v in range(vertices.shape[0]):
            column = int(canvas.screen[v, 0] / step + 0.5 * SAMPLES)
            row = int(0.5 * SAMPLES - canvas.screen[v, 1] / step)
            # a little nearer than the vertex, as slopes and pixels are coarse
            near = -1.0 / (canvas.p[v, 2] + 0.04 * radius)
            seen[k, v] = canvas.depth[row - 1 : row + 2, column - 1 : column + 2].min() <= near


@compiled
def light_vertices(directions, seen, lamp):
    """The share of a lamp's light that reaches each vertex: the mean over the directions next to the lamp's, which is
    given in object coordinates."""
    lit = np.zeros(seen.shape[1])
    for k in np.argsort(-(directions @ lamp))[:NEAREST]:
        lit += seen[k]
    return lit / NEAREST
