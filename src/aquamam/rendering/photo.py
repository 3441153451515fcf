"""Pictures of a mesh as cameras take them and detectors cut them: everything but the rotation is drawn from a key,
one for each picture.

The camera looks at the part's centre from 4 to 20 radii. The picture is the square crop about the box of what is seen
of the part, shifted and scaled as detectors err (`crop_window`). A window (a_x, a_y, b) says where the centre lies in
the crop and how large the part is: a in shares of the crop's side from its middle, x right and y down, and b the
logarithm of the apparent radius, in shares of the side, over `NOMINAL`.
"""

import math
from typing import NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Float64, UInt8, UInt64

from aquamam.geometry.camera import MARGIN, NOMINAL
from aquamam.rendering.backdrop import paint_background, paint_shape
from aquamam.rendering.framing import draw_occluder, draw_shape, draw_window, stand
from aquamam.rendering.lights import (
    DIFFUSE,
    GLOSSY,
    draw_environment,
    draw_lights,
    light_vertices,
    lobe_of,
    log_uniform,
    look_up,
    uniform,
    visibility,
)
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.raster import (
    TINY,
    colour_of,
    compiled,
    cover,
    cross,
    dot,
    edges,
    mix,
    new_canvas,
    planes,
    set_rays,
    texel,
    texture_level,
    value,
)
from aquamam.rendering.scene import Scene, scene_of
from aquamam.rendering.sensor import expose

SUPERSAMPLE = 2
NEAREST, FARTHEST = 4.0, 20.0  # distances in radii
SMALLEST, LARGEST = 40.0, 220.0  # pixels along the part's box in the photograph


class Photographs(NamedTuple):
    """Pictures and where the part lies in each."""

    images: UInt8[np.ndarray, "n 3 side side"]
    windows: Float64[np.ndarray, "n 3"]  # a_x, a_y, b
    distances: Float64[np.ndarray, " n"]  # of the camera from the mesh's origin


def photograph(
    mesh: Mesh,
    rotations: Float64[np.ndarray, "n 3 3"],
    keys: UInt64[np.ndarray, " n"],
    *,
    side: int,
    pictures: UInt8[np.ndarray, "m h h 3"] | None = None,
    mesh_error: float = 0.0,
) -> Photographs:
    """One picture for each rotation and key; the same rotation and key give the same bytes, whatever else is asked
    for. mesh_error: how far the part may differ from its mesh, as a share of its size.
    """
    n = len(keys)
    taken = Photographs(np.empty((n, 3, side, side), np.uint8), np.empty((n, 3)), np.empty(n))
    pictures = np.empty((0, 1, 1, 3), np.uint8) if pictures is None else pictures
    _photograph_all(part_of(mesh), mesh_error, np.ascontiguousarray(rotations), keys, pictures, taken)
    return taken


class Part(NamedTuple):
    """What the loops read of a mesh."""

    radius: float
    scene: Scene
    normals: np.ndarray  # (F, 3, 3) float32, of the corners
    directions: np.ndarray  # (d, 3)
    seen: np.ndarray  # (d, V), whether a vertex is seen from there
    ambient: np.ndarray  # (F, 3) float32, the share of ambient light that reaches each corner


_PARTS: WeakKeyDictionary[Mesh, Part] = WeakKeyDictionary()


def part_of(mesh: Mesh) -> Part:
    if mesh not in _PARTS:
        scene, corners = scene_of(mesh), mesh.vertices[mesh.faces]
        flat = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        normals = np.repeat(flat[:, None], 3, 1) if mesh.normals is None else np.array(mesh.normals, np.float64)
        normals = normals / np.maximum(np.linalg.norm(normals, axis=-1, keepdims=True), 1e-12)
        normals = np.ascontiguousarray(normals, np.float32)
        radius = float(np.sqrt((corners**2).sum(-1).max()))
        _PARTS[mesh] = Part(radius, scene, normals, *visibility(scene, radius, normals))
    return _PARTS[mesh]


@compiled
def _draw_paint(state, known):
    """How the part's colours are changed: three gains, an exponent, a saturation.

    A mesh without colours says nothing of the real part's: an exponent of zero makes it white, and the gains are its
    colour, from black to white, half of the time with a tint.
    """
    gain, gains = log_uniform(state, 0.75, 1.3), np.empty(3)
    for c in range(3):
        gains[c] = gain * math.exp(uniform(state, -0.12, 0.12))
    exponent, saturation = log_uniform(state, 0.75, 1.35), uniform(state, 0.6, 1.3)
    if not known:
        gain, tint, exponent = log_uniform(state, 0.03, 0.8), max(uniform(state, -1.2, 1.2), 0.1), 0.0
        for c in range(3):
            gains[c] = min(gain * math.exp(uniform(state, -tint, tint)), 0.9)
    return gains[0], gains[1], gains[2], exponent, saturation


@compiled
def _linear(curve, level):
    """Linear light of a byte, or of what lies between two."""
    level = min(max(level, 0.0), 255.0)
    k = int(level)
    return curve[k] + (level - k) * (curve[k + 1] - curve[k])


@compiled
def _repaint(paint, curve, red, green, blue):
    """Linear light of a colour from 0 to 255 after the changes."""
    r, g, b = _linear(curve, red), _linear(curve, green), _linear(curve, blue)
    grey = (r + g + b) / 3.0
    r, g, b = grey + paint[4] * (r - grey), grey + paint[4] * (g - grey), grey + paint[4] * (b - grey)
    return max(paint[0] * r, 0.0), max(paint[1] * g, 0.0), max(paint[2] * b, 0.0)


@compiled
def _shade(canvas, part, lit_by, R, window, step, box, paint, gloss, key, diffuse, glossy, image, cover):
    """Add the light of every sample to its pixel: diffuse and glossy, from the maps and from one lamp of its own."""
    p, _, xs, ys, _, owner, _ = canvas
    _, faces, _, colours, texels, levels = part.scene
    normals, ambient = part.normals, part.ambient
    painted, textured, last = colours.shape[0] > 0, levels.shape[0] > 0, levels.shape[0] - 1
    left, right, top, bottom = box
    share = 1.0 / (SUPERSAMPLE * SUPERSAMPLE)
    reflectance, lobe = gloss
    curve = (np.arange(257) / 255.0) ** (2.2 * paint[3])
    base = _repaint(paint, curve, 255.0, 255.0, 255.0)
    face, footprint = -1, 0.0
    s = first = second = third = nx_plane = ny_plane = nz_plane = around_plane = lamp_plane = (0.0, 0.0, 0.0)
    for y in range(top, bottom + 1):
        ry = ys[y]
        for x in range(left, right + 1):
            f = owner[y, x]
            if f < 0:
                continue
            rx = xs[x]
            if f != face:
                face = f
                i, j, k = faces[f, 0], faces[f, 1], faces[f, 2]
                e = edges(p, faces, f)
                s = e[3]
                nx_plane, ny_plane, nz_plane = planes(e, normals, f, 1.0)
                around_plane = mix(e, float(ambient[f, 0]), float(ambient[f, 1]), float(ambient[f, 2]))
                lamp_plane = mix(e, lit_by[i], lit_by[j], lit_by[k])
                if painted:
                    first, second, third = planes(e, colours, f, 1.0)
                if textured:
                    footprint = abs(dot(s, cross(first, second))) * step * step * (levels[0, 1] * levels[0, 2])
            divisor = value(s, rx, ry)
            inverse = 1.0 / divisor if divisor > TINY else 0.0
            if painted:
                red, green = value(first, rx, ry) * inverse, value(second, rx, ry) * inverse
                blue = value(third, rx, ry) * inverse
                if textured:
                    level, _ = texture_level(footprint * inverse * inverse * inverse, last)
                    packed = texel(texels, levels, level, red - np.floor(red), green - np.floor(green))
                    red, green, blue = colour_of(packed, 1.0)
                base = _repaint(paint, curve, red, green, blue)
            a, b, c = value(nx_plane, rx, ry), value(ny_plane, rx, ry), value(nz_plane, rx, ry)
            nx = R[0, 0] * a + R[0, 1] * b + R[0, 2] * c
            ny = R[1, 0] * a + R[1, 1] * b + R[1, 2] * c
            nz = R[2, 0] * a + R[2, 1] * b + R[2, 2] * c
            vx, vy = -(rx + window[0]), -(ry + window[1])  # towards the camera; z is one
            size = math.sqrt(vx * vx + vy * vy + 1.0)
            vx, vy, vz = vx / size, vy / size, 1.0 / size
            towards = nx * vx + ny * vy + nz * vz
            norm = math.sqrt(nx * nx + ny * ny + nz * nz) + 1e-30
            norm = norm if towards > 0.0 else -norm  # faces have two sides
            nx, ny, nz, towards = nx / norm, ny / norm, nz / norm, towards / norm
            around, lamp = value(around_plane, rx, ry) * inverse, key[3] * value(lamp_plane, rx, ry) * inverse
            light = look_up(diffuse, nx, ny, nz)
            lit = nx * key[0] + ny * key[1] + nz * key[2]
            strength = max(lit, 0.0) * lamp
            fresnel = reflectance + (1.0 - reflectance) * (1.0 - towards) ** 5 * (reflectance > 0.0)
            qx, qy, qz = 2.0 * towards * nx - vx, 2.0 * towards * ny - vy, 2.0 * towards * nz - vz
            mirrored = look_up(glossy, qx, qy, qz)
            spot = 0.0
            if lit > 0.0 and fresnel > 0.0:
                spot = lamp * lobe * math.exp(lobe * (qx * key[0] + qy * key[1] + qz * key[2] - 1.0)) / 6.2832
            row, column = y // SUPERSAMPLE, x // SUPERSAMPLE
            for c in range(3):
                matt = (1.0 - fresnel) * base[c] * (around * light[c] + strength * key[4 + c])
                image[c, row, column] += share * (matt + fresnel * (around * mirrored[c] + spot * key[4 + c]))
            cover[row, column] += share


@compiled
def _compose(image, cover, background):
    """Lay the part over its background, and tell the mean brightness of the part and of the whole."""
    side, part, weight, whole = cover.shape[0], 0.0, 1e-6, 1e-6
    for row in range(side):
        for column in range(side):
            share = min(cover[row, column], np.float32(1))
            part += image[0, row, column] + image[1, row, column] + image[2, row, column]
            weight += 3.0 * share
            for c in range(3):
                image[c, row, column] += (1 - share) * background[c, row, column]
                whole += image[c, row, column]
    return max(part / weight, 1e-4), whole / (3.0 * side * side)


@compiled
def _own_lamp(lights):
    """The brightest light as direction, light on a surface that faces it, and colour."""
    sharp, red, green, blue = lights[0, 3], lights[0, 4], lights[0, 5], lights[0, 6]
    height = (red + green + blue) / 3.0
    strength = height * 2.0 * math.pi * (1.0 - math.exp(-2.0 * sharp)) / sharp
    return lights[0, 0], lights[0, 1], lights[0, 2], strength, red / height, green / height, blue / height


@compiled
def _photograph_all(part, error, rotations, keys, pictures, taken):
    scene, radius, side = part.scene, part.radius, taken.images.shape[2]
    samples, vertices = side * SUPERSAMPLE, scene.vertices
    canvas, waved = new_canvas(vertices.shape[0], samples, samples), np.empty(vertices.shape)
    image, background = np.empty((3, side, side), np.float32), np.empty((3, side, side), np.float32)
    spare, covered = np.empty((3, side, side), np.float32), np.empty((side, side), np.float32)
    diffuse, glossy = np.empty((3, DIFFUSE, DIFFUSE), np.float32), np.empty((3, GLOSSY, GLOSSY), np.float32)
    state = np.empty(1, np.uint64)
    for index in range(len(keys)):
        R = rotations[index]
        state[0] = keys[index]
        distance = taken.distances[index] = radius * log_uniform(state, NEAREST, FARTHEST)
        stretch, wave = draw_shape(state, radius, error)
        box = stand(canvas, vertices, waved, R @ stretch, wave, distance)
        occluder, box = draw_occluder(state, canvas.screen, box)
        middle_x, middle_y, size = draw_window(state, box)
        taken.windows[index, 0], taken.windows[index, 1] = -middle_x / size, middle_y / size
        taken.windows[index, 2] = math.log(radius / distance / size / NOMINAL)
        # a crop off the axis is a crop on the axis of a sheared scene
        p, screen = canvas.p, canvas.screen
        for k in range(p.shape[0]):
            p[k, 0] += middle_x * p[k, 2]
            p[k, 1] += middle_y * p[k, 2]
            screen[k, 0], screen[k, 1] = -p[k, 0] / p[k, 2], -p[k, 1] / p[k, 2]
        step = size / samples
        set_rays(canvas, step)
        box = cover(canvas, scene.faces, 0.1 * radius, step)
        roughness = log_uniform(state, 0.04, 0.9)
        reflectance = uniform(state, 0.02, 0.09) if uniform(state, 0.0, 1.0) < 0.75 else 0.0
        lights, lobe = draw_lights(state), lobe_of(roughness)
        draw_environment(state, lights, lobe, diffuse, glossy)
        key = _own_lamp(lights)
        lit = light_vertices(part.directions, part.seen, np.array(key[:3]) @ R)
        paint = _draw_paint(state, scene.paint.shape[0] > 0)
        gloss = reflectance, 1.0 / (1.0 / lobe + 1.0 / lights[0, 3])
        image[:] = 0
        covered[:] = 0
        window = middle_x, middle_y
        _shade(canvas, part, lit, R, window, step, box, paint, gloss, key, diffuse, glossy, image, covered)
        canvas.depth[box[2] : box[3] + 1, box[0] : box[1] + 1] = 0.0
        canvas.owner[box[2] : box[3] + 1, box[0] : box[1] + 1] = -1
        paint_background(state, background, spare, diffuse, pictures)
        bright, whole = _compose(image, covered, background)
        x, y, half_x, half_y, angle, round_ = occluder
        if half_x > 0.0:
            x, y = ((x - middle_x) / size + 0.5) * side, (0.5 - (y - middle_y) / size) * side
            # rows run down, so angles run the other way
            paint_shape(state, image, spare, diffuse, x, y, half_x / size * side, half_y / size * side, -angle, round_)
        # cameras expose for the part, for what surrounds it, or for something between
        exposure = log_uniform(state, 0.12, 0.75) / (bright * (whole / bright) ** uniform(state, 0.0, 1.0))
        pixels = MARGIN * log_uniform(state, SMALLEST, LARGEST)
        expose(state, image, spare, exposure, pixels, taken.images[index])
