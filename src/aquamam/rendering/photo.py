"""Pictures of a mesh as cameras take them and detectors cut them: everything but the rotation is drawn from a key,
one for each picture.

The camera looks at the part's centre from 4 to 20 radii. The picture is the square crop about the box of what is seen
of the part, shifted and scaled as detectors err (`crop_window`). A window (a_x, a_y, b) says where the centre lies in
the crop and how large the part is: a in shares of the crop's side from its middle, x right and y down, and b the
logarithm of the apparent radius, in shares of the side, over `NOMINAL`.
"""

import math
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
from jaxtyping import Float32, Float64, UInt8, UInt64

from aquamam.geometry.camera import MARGIN, NOMINAL
from aquamam.rendering.backdrop import paint_background, paint_shape
from aquamam.rendering.framing import draw_occluder, draw_shape, draw_window, project
from aquamam.rendering.lights import (
    DIFFUSE,
    GLOSSY,
    MOST_LIGHTS,
    draw_environment,
    draw_lights,
    light_vertices,
    log_uniform,
    look_up,
    uniform,
    visibility,
)
from aquamam.rendering.meshes import GREY, Mesh
from aquamam.rendering.raster import TILE, Scene, _cover, _edges, _mix, compiled, texel
from aquamam.rendering.render import scene_arrays
from aquamam.rendering.sensor import COSINES, QUANTISERS, expose

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
    images, windows = np.empty((len(keys), 3, side, side), np.uint8), np.empty((len(keys), 3))
    distances = np.empty(len(keys))
    if pictures is None:
        pictures = np.empty((0, 1, 1, 3), np.uint8)
    radius, scene, normals, shadows = photo_scene(mesh)
    results = images, windows, distances
    rotations = np.ascontiguousarray(rotations)
    _photograph_all(
        scene, normals, shadows, radius, mesh_error, rotations, keys, pictures, QUANTISERS, COSINES, *results
    )
    return Photographs(*results)


_SCENES: WeakKeyDictionary[Mesh, Any] = WeakKeyDictionary()


def photo_scene(mesh: Mesh) -> tuple[float, Scene, Float32[np.ndarray, "faces 3 3"], Any]:
    """Its radius, the mesh as the loops read it, a unit normal for each corner, and where light reaches it."""
    if mesh not in _SCENES:
        scene = Scene(*scene_arrays(mesh, GREY))
        corners = mesh.vertices[mesh.faces]
        flat = np.cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])
        normals = np.repeat(flat[:, None], 3, 1) if mesh.normals is None else np.array(mesh.normals, np.float64)
        normals = normals / np.maximum(np.linalg.norm(normals, axis=-1, keepdims=True), 1e-12)
        normals = np.ascontiguousarray(normals, np.float32)
        radius = float(np.sqrt((corners**2).sum(-1).max()))
        _SCENES[mesh] = radius, scene, normals, visibility(scene, radius, normals)
    return _SCENES[mesh]


@compiled
def _draw_paint(state, known, paint):
    """How the part's colours are changed: three gains, an exponent, a saturation.

    A mesh without colours says nothing of the real part's: an exponent of zero makes it white, and the gains are its
    colour, from black to white, half of the time with a tint.
    """
    gain = log_uniform(state, 0.75, 1.3)
    for c in range(3):
        paint[c] = gain * math.exp(uniform(state, -0.12, 0.12))
    paint[3] = log_uniform(state, 0.75, 1.35)
    paint[4] = uniform(state, 0.6, 1.3)
    if not known:
        gain, tint = log_uniform(state, 0.03, 0.8), max(uniform(state, -1.2, 1.2), 0.1)
        for c in range(3):
            paint[c] = min(gain * math.exp(uniform(state, -tint, tint)), 0.9)
        paint[3] = 0.0


@compiled
def _linear(curve, value):
    """Linear light of a byte, or of what lies between two."""
    value = min(max(value, 0.0), 255.0)
    k = int(value)
    return curve[k] + (value - k) * (curve[k + 1] - curve[k])


@compiled
def _repaint(paint, curve, red, green, blue):
    """Linear light of a colour from 0 to 255 after the changes."""
    r, g, b = _linear(curve, red), _linear(curve, green), _linear(curve, blue)
    grey = (r + g + b) / 3.0
    r, g, b = grey + paint[4] * (r - grey), grey + paint[4] * (g - grey), grey + paint[4] * (b - grey)
    return max(paint[0] * r, 0.0), max(paint[1] * g, 0.0), max(paint[2] * b, 0.0)


@compiled
def _texel(scene, u, v, area):
    """Colour of the texture, between the two levels whose texels match the area in texels that a sample covers."""
    texels, levels = scene[5], scene[6]
    last, level = levels.shape[0] - 1, 0
    while area > 4.0 and level < last:
        area *= 0.25
        level += 1
    packed = texel(texels, levels, level, u - np.floor(u), v - np.floor(v))
    return (packed & 0xFFFFF) / 4096.0, (packed >> 20 & 0xFFFFF) / 4096.0, (packed >> 40) / 4096.0


@compiled
def _shade(
    p,
    scene,
    normals,
    ambient,
    lit_by,
    R,
    window,
    step,
    xs,
    ys,
    owner,
    box,
    paint,
    gloss,
    key,
    diffuse,
    glossy,
    image,
    cover,
):
    """Add the light of every sample to its pixel: diffuse and glossy, from the maps and from one lamp of its own."""
    faces, uv, colours, levels = scene[1], scene[3], scene[4], scene[6]
    textured, coloured = levels.shape[0] > 0, colours.shape[0] > 1
    left, right, top, bottom = box
    share = 1.0 / (SUPERSAMPLE * SUPERSAMPLE)
    reflectance, lobe = gloss
    curve = (np.arange(257) / 255.0) ** (2.2 * paint[3])
    red, green, blue = _repaint(paint, curve, float(colours[0, 0, 0]), float(colours[0, 0, 1]), float(colours[0, 0, 2]))
    face, footprint = -1, 0.0
    n, reached = np.empty((3, 3)), np.empty((2, 3))
    sx, sy, sz, fx, fy, fz, gx, gy, gz, hx, hy, hz = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
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
                e = _edges(p[i, 0], p[i, 1], p[i, 2], p[j, 0], p[j, 1], p[j, 2], p[k, 0], p[k, 1], p[k, 2])
                sx, sy, sz = e[0] + e[3] + e[6], e[1] + e[4] + e[7], e[2] + e[5] + e[8]
                for c in range(3):
                    n[c] = _mix(float(normals[f, 0, c]), float(normals[f, 1, c]), float(normals[f, 2, c]), e)
                reached[0] = _mix(float(ambient[f, 0]), float(ambient[f, 1]), float(ambient[f, 2]), e)
                reached[1] = _mix(float(lit_by[i]), float(lit_by[j]), float(lit_by[k]), e)
                if textured:
                    fx, fy, fz = _mix(float(uv[f, 0, 0]), float(uv[f, 1, 0]), float(uv[f, 2, 0]), e)
                    gx, gy, gz = _mix(float(uv[f, 0, 1]), float(uv[f, 1, 1]), float(uv[f, 2, 1]), e)
                    mx, my, mz = fy * gz - fz * gy, fz * gx - fx * gz, fx * gy - fy * gx
                    footprint = abs(sx * mx + sy * my + sz * mz) * step * step * (levels[0, 1] * levels[0, 2])
                elif coloured:
                    fx, fy, fz = _mix(float(colours[f, 0, 0]), float(colours[f, 1, 0]), float(colours[f, 2, 0]), e)
                    gx, gy, gz = _mix(float(colours[f, 0, 1]), float(colours[f, 1, 1]), float(colours[f, 2, 1]), e)
                    hx, hy, hz = _mix(float(colours[f, 0, 2]), float(colours[f, 1, 2]), float(colours[f, 2, 2]), e)
            divisor = sx * rx + sy * ry - sz
            inverse = 1.0 / divisor if divisor > 1e-100 else 0.0
            if textured:
                u, v = (fx * rx + fy * ry - fz) * inverse, (gx * rx + gy * ry - gz) * inverse
                red, green, blue = _texel(scene, u, v, footprint * inverse * inverse * inverse)
                red, green, blue = _repaint(paint, curve, red, green, blue)
            elif coloured:
                red, green = (fx * rx + fy * ry - fz) * inverse, (gx * rx + gy * ry - gz) * inverse
                red, green, blue = _repaint(paint, curve, red, green, (hx * rx + hy * ry - hz) * inverse)
            a = n[0, 0] * rx + n[0, 1] * ry - n[0, 2]
            b = n[1, 0] * rx + n[1, 1] * ry - n[1, 2]
            c_ = n[2, 0] * rx + n[2, 1] * ry - n[2, 2]
            nx = R[0, 0] * a + R[0, 1] * b + R[0, 2] * c_
            ny = R[1, 0] * a + R[1, 1] * b + R[1, 2] * c_
            nz = R[2, 0] * a + R[2, 1] * b + R[2, 2] * c_
            vx, vy = -(rx + window[0]), -(ry + window[1])  # towards the camera; z is one
            size = math.sqrt(vx * vx + vy * vy + 1.0)
            vx, vy, vz = vx / size, vy / size, 1.0 / size
            towards = nx * vx + ny * vy + nz * vz
            norm = math.sqrt(nx * nx + ny * ny + nz * nz) + 1e-30
            norm = norm if towards > 0.0 else -norm  # faces have two sides
            nx, ny, nz, towards = nx / norm, ny / norm, nz / norm, towards / norm
            around = (reached[0, 0] * rx + reached[0, 1] * ry - reached[0, 2]) * inverse
            lamp = key[3] * (reached[1, 0] * rx + reached[1, 1] * ry - reached[1, 2]) * inverse
            dr, dg, db = look_up(diffuse, nx, ny, nz)
            lit = nx * key[0] + ny * key[1] + nz * key[2]
            strength = max(lit, 0.0) * lamp
            fresnel = reflectance + (1.0 - reflectance) * (1.0 - towards) ** 5 * (reflectance > 0.0)
            qx, qy, qz = 2.0 * towards * nx - vx, 2.0 * towards * ny - vy, 2.0 * towards * nz - vz
            gr, gg, gb = look_up(glossy, qx, qy, qz)
            spot = 0.0
            if lit > 0.0 and fresnel > 0.0:
                spot = lamp * lobe * math.exp(lobe * (qx * key[0] + qy * key[1] + qz * key[2] - 1.0)) / 6.2832
            rest = 1.0 - fresnel
            row, column = y // SUPERSAMPLE, x // SUPERSAMPLE
            image[0, row, column] += share * (
                rest * red * (around * dr + strength * key[4]) + fresnel * (around * gr + spot * key[4])
            )
            image[1, row, column] += share * (
                rest * green * (around * dg + strength * key[5]) + fresnel * (around * gg + spot * key[5])
            )
            image[2, row, column] += share * (
                rest * blue * (around * db + strength * key[6]) + fresnel * (around * gb + spot * key[6])
            )
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
def _photograph_all(
    scene, normals, shadows, radius, error, rotations, keys, pictures, quantisers, cosines, out, windows, distances
):
    side = out.shape[2]
    samples = side * SUPERSAMPLE
    vertices, (directions, seen, ambient) = scene[0], shadows
    lit_by = np.empty(vertices.shape[0])
    p, screen = np.empty((vertices.shape[0], 3)), np.empty((vertices.shape[0], 2))
    depth, owner = np.zeros((samples, samples), np.float32), np.full((samples, samples), -1, np.int32)
    floor = np.zeros((samples // TILE + 1, samples // TILE + 1), np.float32)
    image, background = np.empty((3, side, side), np.float32), np.empty((3, side, side), np.float32)
    spare, cover = np.empty((3, side, side), np.float32), np.empty((side, side), np.float32)
    diffuse, glossy = np.empty((3, DIFFUSE, DIFFUSE), np.float32), np.empty((3, GLOSSY, GLOSSY), np.float32)
    lights, key = np.empty((MOST_LIGHTS, 7)), np.empty(7)
    paint, occluder, stretch, wave = np.empty(5), np.empty(6), np.empty((3, 3)), np.empty(7)
    state = np.empty(1, np.uint64)
    for index in range(out.shape[0]):
        R = rotations[index]
        state[0] = keys[index]
        distance = distances[index] = radius * log_uniform(state, NEAREST, FARTHEST)
        draw_shape(state, radius, error, stretch, wave)
        box = project(vertices, R @ stretch, wave, distance, p)
        box = draw_occluder(state, p, box, occluder)
        middle_x, middle_y, size = draw_window(state, box)
        windows[index, 0], windows[index, 1] = -middle_x / size, middle_y / size
        windows[index, 2] = math.log(radius / distance / size / NOMINAL)
        # a crop off the axis is a crop on the axis of a sheared scene
        for k in range(p.shape[0]):
            p[k, 0] += middle_x * p[k, 2]
            p[k, 1] += middle_y * p[k, 2]
            screen[k, 0], screen[k, 1] = -p[k, 0] / p[k, 2], -p[k, 1] / p[k, 2]
        step = size / samples
        xs = (np.arange(samples) + (0.5 - 0.5 * samples)) * step
        ys = ((0.5 * samples - 0.5) - np.arange(samples)) * step
        box = _cover(p, screen, scene[1], 0.1 * radius, step, xs, ys, depth, owner, floor)
        roughness = log_uniform(state, 0.04, 0.9)
        reflectance = uniform(state, 0.02, 0.09) if uniform(state, 0.0, 1.0) < 0.75 else 0.0
        count = draw_lights(state, lights)
        draw_environment(state, roughness, 1, lights, count, diffuse, glossy)
        _own_lamp(lights, key)
        light_vertices(directions, seen, key[:3] @ R, lit_by)
        _draw_paint(state, scene[6].shape[0] > 0 or scene[4].shape[0] > 1, paint)
        image[:] = 0
        cover[:] = 0
        lobe = 1.0 / (1.0 / min(max(0.5 / (roughness * roughness), 0.6), 1500.0) + 1.0 / lights[0, 3])
        _shade(
            p,
            scene,
            normals,
            ambient,
            lit_by,
            R,
            (middle_x, middle_y),
            step,
            xs,
            ys,
            owner,
            box,
            paint,
            (reflectance, lobe),
            key,
            diffuse,
            glossy,
            image,
            cover,
        )
        paint_background(state, background, spare, diffuse, pictures)
        part, whole = _compose(image, cover, background)
        if occluder[2] > 0.0:
            x, y = ((occluder[0] - middle_x) / size + 0.5) * side, (0.5 - (occluder[1] - middle_y) / size) * side
            half_x, half_y = occluder[2] / size * side, occluder[3] / size * side
            # rows run down, so angles run the other way
            paint_shape(state, image, spare, diffuse, x, y, half_x, half_y, -occluder[4], occluder[5] > 0.5)
        # cameras expose for the part, for what surrounds it, or for something between
        exposure = log_uniform(state, 0.12, 0.75) / (part * (whole / part) ** uniform(state, 0.0, 1.0))
        pixels = MARGIN * log_uniform(state, SMALLEST, LARGEST)
        expose(state, image, spare, exposure, pixels, quantisers, cosines, out[index])
        depth[box[2] : box[3] + 1, box[0] : box[1] + 1] = 0.0
        owner[box[2] : box[3] + 1, box[0] : box[1] + 1] = -1


@compiled
def _own_lamp(lights, key):
    """The brightest light as direction, light on a surface that faces it, and colour."""
    for k in range(3):
        key[k] = lights[0, k]
    height = (lights[0, 4] + lights[0, 5] + lights[0, 6]) / 3.0
    sharp = lights[0, 3]
    key[3] = height * 2.0 * math.pi * (1.0 - math.exp(-2.0 * sharp)) / sharp
    for c in range(3):
        key[4 + c] = lights[0, 4 + c] / height
