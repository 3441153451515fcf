"""Triangles to pixels: one compiled loop over images.

A camera sits at the origin of eye space and looks along -z; sample (row, column) sends the ray r = (x, y, -1).
For a triangle with corners a, b, c in eye space

    e_a = r . (b x c),   e_b = r . (c x a),   e_c = r . (a x b),   V = a . (b x c),   S = e_a + e_b + e_c

the ray meets it where all e have the sign of V, at depth V / S, with barycentric coordinates e / S. This is true for
any depth, so that triangles need no clipping; and the two triangles on an edge compute exactly opposite e, so that
no sample falls between them. Attributes (normal, uv, colour) are linear in r up to the common divisor S: each is kept
as the plane (x, y, z) of its value x r_x + y r_y - z.
"""

import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np

# of all loops here: numba takes machine code from the disk if the file of the outermost function is as it was
SOURCES = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()[:8]
TILE = 8  # samples along a side
TINY = 1e-100  # of a triangle seen edge-on rounding leaves anything


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile without fast-math, so that bytes are the same everywhere, and keep the machine code on disk."""
    function = inspect.unwrap(function)  # numba reads the source, not a wrapper that checks types
    function.__qualname__ += f"_{SOURCES}"  # part of the file's name there
    try:
        return numba.njit(function, cache=True, nogil=True, error_model="numpy")
    except RuntimeError:  # numba found no writable cache directory, neither beside this file nor the user's
        return numba.njit(function, nogil=True, error_model="numpy")


class Lens(NamedTuple):
    """Camera and light, the same for all images."""

    distance: float
    tan_half_fov: float  # of the vertical angle of view
    near: float
    diffuse: float
    ambient: float
    supersample: int
    colour: tuple[float, float, float]  # of meshes without paint


class Canvas(NamedTuple):
    """What is known of a picture before it has colours."""

    p: np.ndarray  # (V, 3), the vertices in camera coordinates
    screen: np.ndarray  # (V, 2), their projection
    xs: np.ndarray  # of the samples' rays (x, y, -1)
    ys: np.ndarray
    depth: np.ndarray  # of each sample the largest inverse depth of a face, 0 where it is empty
    owner: np.ndarray  # of each sample that face, -1 where it is empty
    floor: np.ndarray  # of each tile the smallest inverse depth


@compiled
def new_canvas(vertices, height, width):
    p, screen, xs, ys = np.empty((vertices, 3)), np.empty((vertices, 2)), np.empty(width), np.empty(height)
    depth, owner = np.zeros((height, width), np.float32), np.full((height, width), -1, np.int32)
    return Canvas(p, screen, xs, ys, depth, owner, np.zeros((height // TILE + 1, width // TILE + 1), np.float32))


@compiled
def set_rays(canvas, step):
    """Rays of samples that lie `step` apart at depth one."""
    height, width = canvas.depth.shape
    canvas.xs[:] = (np.arange(width) + (0.5 - 0.5 * width)) * step
    canvas.ys[:] = ((0.5 * height - 0.5) - np.arange(height)) * step


@compiled
def place(canvas, vertices, R, distance):
    """Rotate vertices, put them before the camera, and project them."""
    p = canvas.p
    for k in range(vertices.shape[0]):
        x, y, z = vertices[k, 0], vertices[k, 1], vertices[k, 2]
        p[k, 0] = R[0, 0] * x + R[0, 1] * y + R[0, 2] * z
        p[k, 1] = R[1, 0] * x + R[1, 1] * y + R[1, 2] * z
        p[k, 2] = R[2, 0] * x + R[2, 1] * y + R[2, 2] * z - distance
        canvas.screen[k, 0], canvas.screen[k, 1] = -p[k, 0] / p[k, 2], -p[k, 1] / p[k, 2]


@compiled
def cross(a, b):
    return a[1] * b[2] - a[2] * b[1], a[2] * b[0] - a[0] * b[2], a[0] * b[1] - a[1] * b[0]


@compiled
def dot(a, b):
    return a[0] * b[0] + a[1] * b[1] + a[2] * b[2]


@compiled
def value(plane, rx, ry):
    """What a plane of an attribute is along a ray, times S."""
    return plane[0] * rx + plane[1] * ry - plane[2]


@compiled
def _corners(p, faces, f):
    i, j, k = faces[f, 0], faces[f, 1], faces[f, 2]
    return (p[i, 0], p[i, 1], p[i, 2]), (p[j, 0], p[j, 1], p[j, 2]), (p[k, 0], p[k, 1], p[k, 2])


@compiled
def edges(p, faces, f):
    """Planes of the three edges of a face, turned so that inside is positive, and of S, then |V| and the sign of V."""
    a, b, c = _corners(p, faces, f)
    u, v, w = cross(b, c), cross(c, a), cross(a, b)
    volume = dot(a, u)
    s = 1.0 if volume > 0.0 else -1.0
    u, v, w = (s * u[0], s * u[1], s * u[2]), (s * v[0], s * v[1], s * v[2]), (s * w[0], s * w[1], s * w[2])
    return u, v, w, (u[0] + v[0] + w[0], u[1] + v[1] + w[1], u[2] + v[2] + w[2]), s * volume, s


@compiled
def mix(e, a, b, c):
    """Plane of an attribute with values a, b, c at the corners."""
    u, v, w = e[0], e[1], e[2]
    return a * u[0] + b * v[0] + c * w[0], a * u[1] + b * v[1] + c * w[1], a * u[2] + b * v[2] + c * w[2]


@compiled
def planes(e, values, f, sign):
    """Planes of three attributes with values (face, corner, attribute)."""
    x = mix(e, sign * values[f, 0, 0], sign * values[f, 1, 0], sign * values[f, 2, 0])
    y = mix(e, sign * values[f, 0, 1], sign * values[f, 1, 1], sign * values[f, 2, 1])
    return x, y, mix(e, sign * values[f, 0, 2], sign * values[f, 1, 2], sign * values[f, 2, 2])


@compiled
def _near_box(corners, near):
    """Extent of the projection of the part of a triangle beyond the near plane."""
    a, b, c = corners
    x0, x1, y0, y1 = np.inf, -np.inf, np.inf, -np.inf
    for _ in range(3):
        if -a[2] >= near:
            x, y = -a[0] / a[2], -a[1] / a[2]
            x0, x1, y0, y1 = min(x0, x), max(x1, x), min(y0, y), max(y1, y)
        if (-a[2] >= near) != (-b[2] >= near):
            t = (-near - a[2]) / (b[2] - a[2])
            x, y = (a[0] + t * (b[0] - a[0])) / near, (a[1] + t * (b[1] - a[1])) / near
            x0, x1, y0, y1 = min(x0, x), max(x1, x), min(y0, y), max(y1, y)
        a, b, c = b, c, a
    return x0, x1, y0, y1


@compiled
def _crossing(edge, step, middle):
    """The column where an edge crosses a row as slope * y + rest, and whether it bounds the row from left or right.

    The two triangles on an edge hold its plane with opposite signs, which cancel here: they get equal numbers.
    """
    if abs(edge[0]) < TINY:  # along the row: the box decides
        return 0.0, 0.0, -np.inf, np.inf
    scale = -1.0 / (edge[0] * step)
    low, high = 0.0 if edge[0] > 0.0 else -np.inf, 0.0 if edge[0] < 0.0 else np.inf
    return edge[1] * scale, middle - edge[2] * scale, low, high


@compiled
def _raise_floor(depth, floor, left, right, top, bottom):
    """The smallest inverse depth of every tile, 0 where a sample is still empty."""
    for i in range(top // TILE, bottom // TILE + 1):
        for j in range(left // TILE, right // TILE + 1):
            lowest = np.float32(np.inf)
            for y in range(i * TILE, min(i * TILE + TILE, depth.shape[0])):
                for x in range(j * TILE, min(j * TILE + TILE, depth.shape[1])):
                    lowest = min(lowest, depth[y, x])
            floor[i, j] = lowest


@compiled
def _hidden(floor, left, right, top, bottom, closest):
    """Whether every tile of samples in a box is nearer throughout."""
    for i in range(top // TILE, bottom // TILE + 1):
        for j in range(left // TILE, right // TILE + 1):
            if floor[i, j] <= closest:
                return False
    return True


@compiled
def cover(canvas, faces, near, step):
    """Keep for every sample the nearest face and its inverse depth; return the box of samples touched.

    Faces that look at the viewer are drawn first. Most others lie behind them: one is passed over when every tile of
    samples that it could touch is already nearer throughout.
    """
    p, screen, xs, ys, depth, owner, floor = canvas
    height, width = depth.shape
    middle_x, middle_y, per_step = 0.5 * width - 0.5, 0.5 * height - 0.5, 1.0 / step
    box_left, box_right, box_top, box_bottom = width, -1, height, -1
    nearest = np.float32(1.0 / near)
    for turned_away in range(2):
        if turned_away:
            _raise_floor(depth, floor, box_left, box_right, box_top, box_bottom)
        for f in range(faces.shape[0]):
            i, j, k = faces[f, 0], faces[f, 1], faces[f, 2]
            az, bz, cz = p[i, 2], p[j, 2], p[k, 2]
            if max(az, bz, cz) <= -near:
                ux, uy, vx, vy = screen[i, 0], screen[i, 1], screen[j, 0], screen[j, 1]
                wx, wy = screen[k, 0], screen[k, 1]
                if ((vx - ux) * (wy - uy) - (wx - ux) * (vy - uy) < 0.0) != (turned_away == 1):
                    continue
                x0, x1, y0, y1 = min(ux, vx, wx), max(ux, vx, wx), min(uy, vy, wy), max(uy, vy, wy)
            elif min(az, bz, cz) <= -near and not turned_away:
                x0, x1, y0, y1 = _near_box(_corners(p, faces, f), near)
            else:
                continue
            left = int(np.ceil(min(max(x0 * per_step + middle_x - 0.01, 0.0), float(width))))
            right = int(np.floor(max(min(x1 * per_step + middle_x + 0.01, width - 1.0), -1.0)))
            top = int(np.ceil(min(max(middle_y - y1 * per_step, 0.0), float(height))))
            bottom = int(np.floor(max(min(middle_y - y0 * per_step, height - 1.0), -1.0)))
            if left > right or top > bottom:
                continue
            if turned_away and _hidden(floor, left, right, top, bottom, -1.0 / max(az, bz, cz)):
                continue
            u, v, w, s, volume, _ = edges(p, faces, f)
            if not volume > 0.0:
                continue  # seen edge-on
            inverse = 1.0 / volume
            dx, dy, dz = s[0] * inverse, s[1] * inverse, s[2] * inverse
            a1, a0, a_lo, a_hi = _crossing(u, step, middle_x)
            b1, b0, b_lo, b_hi = _crossing(v, step, middle_x)
            c1, c0, c_lo, c_hi = _crossing(w, step, middle_x)
            box_left, box_right = min(box_left, left), max(box_right, right)
            box_top, box_bottom = min(box_top, top), max(box_bottom, bottom)
            for y in range(top, bottom + 1):
                ry = ys[y]
                a, b, c, d = a1 * ry + a0, b1 * ry + b0, c1 * ry + c0, dy * ry - dz
                lo = int(np.ceil(min(max(float(left), a + a_lo, b + b_lo, c + c_lo), right + 1.0)))
                hi = int(np.floor(max(min(float(right), a + a_hi, b + b_hi, c + c_hi), left - 1.0)))
                for x in range(lo, hi + 1):
                    inverse = np.float32(dx * xs[x] + d)
                    if inverse > depth[y, x] and inverse <= nearest:
                        depth[y, x] = inverse
                        owner[y, x] = f
    return box_left, box_right, box_top, box_bottom


@compiled
def texel(texels, levels, level, u, v):
    """Colour of a level of the texture at u, v in [0, 1), between four texels: 4096 times red, green and blue, 20 bits
    each."""
    offset, height, width = levels[level, 0], levels[level, 1], levels[level, 2]
    tx, ty = u * width - 0.5, (1.0 - v) * height - 0.5
    bx, by = np.floor(tx), np.floor(ty)
    i0, j0 = int(bx), int(by)
    wx, wy = int((tx - bx) * 64.0 + 0.5), int((ty - by) * 64.0 + 0.5)
    i1 = i0 + 1 if i0 + 1 < width else 0
    j1 = offset + (j0 + 1 if j0 + 1 < height else 0) * width
    i0 = i0 if i0 >= 0 else width - 1
    j0 = offset + (j0 if j0 >= 0 else height - 1) * width
    # three colours in one integer: weights in 64ths add to 4096, and 255 * 4096 < 2^20
    upper = texels[j0 + i0] * (64 - wx) + texels[j0 + i1] * wx
    lower = texels[j1 + i0] * (64 - wx) + texels[j1 + i1] * wx
    return upper * (64 - wy) + lower * wy


@compiled
def colour_of(packed, weight):
    weight *= 1.0 / 4096.0
    return weight * (packed & 0xFFFFF), weight * (packed >> 20 & 0xFFFFF), weight * (packed >> 40)


@compiled
def texture_level(area, last):
    """The level of the texture whose texels match a sample that covers so many of the finest one's, and how many of
    them it covers there."""
    level = 0
    while area > 4.0 and level < last:
        area *= 0.25
        level += 1
    return level, area


@compiled
def _shade(canvas, scene, light, object_light, background, lens, step, box, total, image):
    """Colour every sample of its nearest face and average the samples of a pixel."""
    p, _, xs, ys, _, owner, _ = canvas
    _, faces, normals, paint, texels, levels = scene
    smooth, painted, textured = normals.shape[0] > 0, paint.shape[0] > 0, levels.shape[0] > 0
    n, last = lens.supersample, levels.shape[0] - 1
    share = 1.0 / (n * n)
    left, right, top, bottom = box
    face, luminance, footprint = -1, 0.0, 0.0
    red, green, blue = lens.colour
    s = first = second = third = nx_plane = ny_plane = nz_plane = (0.0, 0.0, 0.0)
    for row in range(top // n, bottom // n + 1):
        total[:] = 0.0
        for y in range(row * n, row * n + n):
            ry = ys[y]
            for x in range(left, right + 1):
                f = owner[y, x]
                if f < 0:
                    continue
                if f != face:
                    face = f
                    e = edges(p, faces, f)
                    s, turn = e[3], -e[5]  # turns normals towards the viewer: faces have two sides
                    if smooth:
                        nx_plane, ny_plane, nz_plane = planes(e, normals, f, turn)
                    else:  # s is the face's normal away from the viewer
                        cosine = -dot(s, light) / np.sqrt(max(dot(s, s), TINY))
                        luminance = lens.ambient + lens.diffuse * max(cosine, 0.0)
                    if painted:
                        first, second, third = planes(e, paint, f, 1.0)
                    if textured:
                        jacobian = abs(dot(s, cross(first, second)))  # d(u, v) / d(x, y) = jacobian / S^3
                        footprint = jacobian * step * step * (levels[0, 1] * levels[0, 2])
                rx = xs[x]
                if smooth:
                    normal = value(nx_plane, rx, ry), value(ny_plane, rx, ry), value(nz_plane, rx, ry)
                    norm = np.sqrt(dot(normal, normal))
                    cosine = dot(normal, object_light) / norm if norm > 0.0 else 0.0
                    luminance = lens.ambient + lens.diffuse * max(cosine, 0.0)
                if painted:
                    divisor = value(s, rx, ry)
                    inverse = 1.0 / divisor if divisor > TINY else 0.0
                    red, green = value(first, rx, ry) * inverse, value(second, rx, ry) * inverse
                    if textured:
                        u, v = red - np.floor(red), green - np.floor(green)
                        level, area = texture_level(footprint * inverse * inverse * inverse, last)
                        finer = min(max((4.0 - area) / 3.0, 0.0), 1.0) if level < last else 1.0
                        red, green, blue = 0.0, 0.0, 0.0
                        for weight in (finer, 1.0 - finer):
                            if weight > 0.0:
                                more = colour_of(texel(texels, levels, level, u, v), weight)
                                red, green, blue = red + more[0], green + more[1], blue + more[2]
                            level += 1
                    else:
                        blue = value(third, rx, ry) * inverse
                pixel = x // n
                total[pixel, 0] += min(red * luminance, 255.0)
                total[pixel, 1] += min(green * luminance, 255.0)
                total[pixel, 2] += min(blue * luminance, 255.0)
                total[pixel, 3] += share
        for column in range(left // n, right // n + 1):
            covered = total[column, 3]
            if covered > 0.0:
                for channel in range(3):
                    mean = total[column, channel] * share + (1.0 - covered) * background[channel]
                    image[row, column, channel] = int(min(max(mean, 0.0), 255.0) + 0.5)
                if image.shape[2] == 4:
                    image[row, column, 3] = int(255.0 * min(covered, 1.0) + 0.5)


@compiled
def draw(scene, rotations, light, backgrounds, lens, out):
    """Draw images into `out` (n, height, width, 3 or 4), uint8; a fourth channel takes the coverage.

    rotations (n, 3, 3) and light (3,), a unit vector towards the light in camera coordinates, are float64, backgrounds
    (n, 3) are uint8.
    """
    canvas = new_canvas(scene.vertices.shape[0], out.shape[1] * lens.supersample, out.shape[2] * lens.supersample)
    step = 2.0 * lens.tan_half_fov / canvas.depth.shape[0]
    set_rays(canvas, step)
    total = np.zeros((out.shape[2], 4))
    for index in range(out.shape[0]):
        R, background, image = rotations[index], backgrounds[index], out[index]
        place(canvas, scene.vertices, R, lens.distance)
        x = R[0, 0] * light[0] + R[1, 0] * light[1] + R[2, 0] * light[2]
        y = R[0, 1] * light[0] + R[1, 1] * light[1] + R[2, 1] * light[2]
        z = R[0, 2] * light[0] + R[1, 2] * light[1] + R[2, 2] * light[2]
        image[:, :, :3] = background
        image[:, :, 3:] = 0
        box = cover(canvas, scene.faces, lens.near, step)
        _shade(canvas, scene, light, (x, y, z), background, lens, step, box, total, image)
        canvas.depth[box[2] : box[3] + 1, box[0] : box[1] + 1] = 0.0
        canvas.owner[box[2] : box[3] + 1, box[0] : box[1] + 1] = -1
