"""Triangles to pixels: one compiled loop over images.

A camera sits at the origin of eye space and looks along -z; sample (row, column) sends the ray r = (x, y, -1).
For a triangle with corners a, b, c in eye space

    e_a = r . (b x c),   e_b = r . (c x a),   e_c = r . (a x b),   V = a . (b x c),   S = e_a + e_b + e_c

the ray meets it where all e have the sign of V, at depth V / S, with barycentric coordinates e / S. This is true for
any depth, so that triangles need no clipping; and the two triangles on an edge compute exactly opposite e, so that
no sample falls between them. Attributes (normal, uv, colour) are linear in r up to the common divisor S.
"""

import contextlib
import hashlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numba
import numpy as np

# of all loops here: numba takes machine code from the disk if the file of the outermost function is as it was
SOURCES = hashlib.sha256(b"".join(p.read_bytes() for p in sorted(Path(__file__).parent.glob("*.py")))).hexdigest()[:8]


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile without fast-math, so that bytes are the same everywhere, and keep the machine code on disk."""
    function = inspect.unwrap(function)  # numba reads the source, not a wrapper that checks types
    function.__qualname__ += f"_{SOURCES}"  # part of the file's name there
    try:
        return numba.njit(function, cache=True, nogil=True, error_model="numpy")
    except RuntimeError:  # numba found no writable cache directory, neither beside this file nor the user's
        return numba.njit(function, nogil=True, error_model="numpy")


class Scene(NamedTuple):
    """What the loops read, in one fixed layout and type; an absent attribute has length 0."""

    vertices: np.ndarray  # (V, 3) float64
    faces: np.ndarray  # (F, 3) int32
    normals: np.ndarray  # (F or 0, 3, 3) float32, of the corners, in object coordinates
    uv: np.ndarray  # (F or 0, 3, 2) float32, v upwards
    colours: np.ndarray  # (F or 1, 3, 3) uint8, of the corners; one row colours all faces
    texels: np.ndarray  # (N,) int64, red + green << 20 + blue << 40, the levels of the texture one after another
    levels: np.ndarray  # (L, 3) int64: offset, height, width


class Lens(NamedTuple):
    """Camera and light, the same for all images."""

    distance: float
    tan_half_fov: float  # of the vertical angle of view
    near: float
    diffuse: float
    ambient: float
    supersample: int


TILE = 8  # samples along a side
TINY = 1e-100  # of a triangle seen edge-on rounding leaves anything


# Helpers that are called for every triangle or sample take numbers only: an array as an argument costs two atomic
# reference counts, several times the arithmetic here.


@compiled
def _cross(ax, ay, az, bx, by, bz):
    return ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx


@compiled
def _edges(ax, ay, az, bx, by, bz, cx, cy, cz):
    """Planes of the three edges, turned so that inside is positive, then |V| and the sign of V."""
    ux, uy, uz = _cross(bx, by, bz, cx, cy, cz)
    vx, vy, vz = _cross(cx, cy, cz, ax, ay, az)
    wx, wy, wz = _cross(ax, ay, az, bx, by, bz)
    volume = ax * ux + ay * uy + az * uz
    s = 1.0 if volume > 0.0 else -1.0
    return s * ux, s * uy, s * uz, s * vx, s * vy, s * vz, s * wx, s * wy, s * wz, s * volume, s


@compiled
def _mix(a, b, c, e):
    """Plane of an attribute with values a, b, c at the corners."""
    return (a * e[0] + b * e[3] + c * e[6], a * e[1] + b * e[4] + c * e[7], a * e[2] + b * e[5] + c * e[8])


@compiled
def _near_box(ax, ay, az, bx, by, bz, cx, cy, cz, near):
    """Extent of the projection of the part of a triangle beyond the near plane."""
    x0, x1, y0, y1 = np.inf, -np.inf, np.inf, -np.inf
    for _ in range(3):
        if -az >= near:
            x, y = -ax / az, -ay / az
            x0, x1, y0, y1 = min(x0, x), max(x1, x), min(y0, y), max(y1, y)
        if (-az >= near) != (-bz >= near):
            t = (-near - az) / (bz - az)
            x, y = (ax + t * (bx - ax)) / near, (ay + t * (by - ay)) / near
            x0, x1, y0, y1 = min(x0, x), max(x1, x), min(y0, y), max(y1, y)
        ax, ay, az, bx, by, bz, cx, cy, cz = bx, by, bz, cx, cy, cz, ax, ay, az
    return x0, x1, y0, y1


@compiled
def _crossing(ex, ey, ez, step, middle):
    """The column where an edge crosses a row as slope * y + rest, and whether it bounds the row from left or right.

    The two triangles on an edge hold its plane with opposite signs, which cancel here: they get equal numbers.
    """
    if abs(ex) < TINY:  # along the row: the box decides
        return 0.0, 0.0, -np.inf, np.inf
    scale = -1.0 / (ex * step)
    return (ey * scale, middle - ez * scale, 0.0 if ex > 0.0 else -np.inf, 0.0 if ex < 0.0 else np.inf)


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
def _cover(p, screen, faces, near, step, xs, ys, depth, owner, floor):
    """Keep for every sample the nearest face and its inverse depth; return the box of samples touched.

    Faces that look at the viewer are drawn first. Most others lie behind them: one is passed over when every tile of
    samples that it could touch is already nearer throughout.
    """
    height, width = depth.shape
    middle_x, middle_y, per_step = 0.5 * width - 0.5, 0.5 * height - 0.5, 1.0 / step
    box_left, box_right, box_top, box_bottom = width, -1, height, -1
    nearest = np.float32(1.0 / near)
    for turned_away in range(2):
        if turned_away:
            _raise_floor(depth, floor, box_left, box_right, box_top, box_bottom)
        for f in range(faces.shape[0]):
            i, j, k = faces[f, 0], faces[f, 1], faces[f, 2]
            ax, ay, az, bx, by, bz = p[i, 0], p[i, 1], p[i, 2], p[j, 0], p[j, 1], p[j, 2]
            cx, cy, cz = p[k, 0], p[k, 1], p[k, 2]
            if max(az, bz, cz) <= -near:
                ux, uy, vx, vy = screen[i, 0], screen[i, 1], screen[j, 0], screen[j, 1]
                wx, wy = screen[k, 0], screen[k, 1]
                if ((vx - ux) * (wy - uy) - (wx - ux) * (vy - uy) < 0.0) != (turned_away == 1):
                    continue
                x0, x1, y0, y1 = min(ux, vx, wx), max(ux, vx, wx), min(uy, vy, wy), max(uy, vy, wy)
            elif min(az, bz, cz) <= -near and not turned_away:
                x0, x1, y0, y1 = _near_box(ax, ay, az, bx, by, bz, cx, cy, cz, near)
            else:
                continue
            left = int(np.ceil(min(max(x0 * per_step + middle_x - 0.01, 0.0), float(width))))
            right = int(np.floor(max(min(x1 * per_step + middle_x + 0.01, width - 1.0), -1.0)))
            top = int(np.ceil(min(max(middle_y - y1 * per_step, 0.0), float(height))))
            bottom = int(np.floor(max(min(middle_y - y0 * per_step, height - 1.0), -1.0)))
            if left > right or top > bottom:
                continue
            if turned_away:
                hidden, closest = True, -1.0 / max(az, bz, cz)
                for y in range(top // TILE, bottom // TILE + 1):
                    for x in range(left // TILE, right // TILE + 1):
                        hidden = hidden and floor[y, x] > closest
                if hidden:
                    continue
            ax, ay, az, bx, by, bz, cx, cy, cz, volume, _ = _edges(ax, ay, az, bx, by, bz, cx, cy, cz)
            if not volume > 0.0:
                continue  # seen edge-on
            inverse = 1.0 / volume
            dx, dy, dz = (ax + bx + cx) * inverse, (ay + by + cy) * inverse, (az + bz + cz) * inverse
            a1, a0, a_lo, a_hi = _crossing(ax, ay, az, step, middle_x)
            b1, b0, b_lo, b_hi = _crossing(bx, by, bz, step, middle_x)
            c1, c0, c_lo, c_hi = _crossing(cx, cy, cz, step, middle_x)
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
def _shade(p, scene, light, object_light, background, lens, step, xs, ys, owner, box, columns, total, image):
    """Colour every sample of its nearest face and average the samples of a pixel."""
    faces, normals, uv, colours, texels, levels = scene[1], scene[2], scene[3], scene[4], scene[5], scene[6]
    smooth, textured, coloured = normals.shape[0] > 0, levels.shape[0] > 0, colours.shape[0] > 1
    n, last = lens.supersample, levels.shape[0] - 1
    share = 1.0 / (n * n)
    lx, ly, lz = object_light
    left, right, top, bottom = box
    face, luminance, footprint = -1, 0.0, 0.0
    red, green, blue = float(colours[0, 0, 0]), float(colours[0, 0, 1]), float(colours[0, 0, 2])
    sx, sy, sz = 0.0, 0.0, 0.0  # planes: of the divisor S, of the normal, of uv or colour
    nxx, nxy, nxz, nyx, nyy, nyz, nzx, nzy, nzz = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    fx, fy, fz, gx, gy, gz, hx, hy, hz = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    for row in range(top // n, bottom // n + 1):
        for column in range(total.shape[0]):
            for channel in range(4):
                total[column, channel] = 0.0
        for y in range(row * n, row * n + n):
            ry = ys[y]
            start = left
            while start <= right:
                f = owner[y, start]
                if f < 0:
                    start += 1
                    continue
                stop = start + 1
                while stop <= right and owner[y, stop] == f:
                    stop += 1
                if f != face:
                    face = f
                    i, j, k = faces[f, 0], faces[f, 1], faces[f, 2]
                    e = _edges(p[i, 0], p[i, 1], p[i, 2], p[j, 0], p[j, 1], p[j, 2], p[k, 0], p[k, 1], p[k, 2])
                    s = -e[10]  # turns normals towards the viewer: faces have two sides
                    sx, sy, sz = e[0] + e[3] + e[6], e[1] + e[4] + e[7], e[2] + e[5] + e[8]
                    if smooth:
                        nxx, nxy, nxz = _mix(s * normals[f, 0, 0], s * normals[f, 1, 0], s * normals[f, 2, 0], e)
                        nyx, nyy, nyz = _mix(s * normals[f, 0, 1], s * normals[f, 1, 1], s * normals[f, 2, 1], e)
                        nzx, nzy, nzz = _mix(s * normals[f, 0, 2], s * normals[f, 1, 2], s * normals[f, 2, 2], e)
                    else:  # (sx, sy, sz) is the face's normal away from the viewer
                        cosine = -(sx * light[0] + sy * light[1] + sz * light[2])
                        cosine /= np.sqrt(max(sx * sx + sy * sy + sz * sz, TINY))
                        luminance = lens.ambient + lens.diffuse * max(cosine, 0.0)
                    if textured:
                        fx, fy, fz = _mix(float(uv[f, 0, 0]), float(uv[f, 1, 0]), float(uv[f, 2, 0]), e)
                        gx, gy, gz = _mix(float(uv[f, 0, 1]), float(uv[f, 1, 1]), float(uv[f, 2, 1]), e)
                        mx, my, mz = _cross(fx, fy, fz, gx, gy, gz)
                        jacobian = abs(sx * mx + sy * my + sz * mz)  # d(u, v) / d(x, y) = jacobian / S^3
                        footprint = jacobian * step * step * (levels[0, 1] * levels[0, 2])
                    elif coloured:
                        fx, fy, fz = _mix(float(colours[f, 0, 0]), float(colours[f, 1, 0]), float(colours[f, 2, 0]), e)
                        gx, gy, gz = _mix(float(colours[f, 0, 1]), float(colours[f, 1, 1]), float(colours[f, 2, 1]), e)
                        hx, hy, hz = _mix(float(colours[f, 0, 2]), float(colours[f, 1, 2]), float(colours[f, 2, 2]), e)
                for x in range(start, stop):
                    rx = xs[x]
                    if smooth:
                        nx, ny, nz = nxx * rx + nxy * ry - nxz, nyx * rx + nyy * ry - nyz, nzx * rx + nzy * ry - nzz
                        norm = np.sqrt(nx * nx + ny * ny + nz * nz)
                        cosine = (nx * lx + ny * ly + nz * lz) / norm if norm > 0.0 else 0.0
                        luminance = lens.ambient + lens.diffuse * max(cosine, 0.0)
                    if textured:
                        divisor = sx * rx + sy * ry - sz
                        inverse = 1.0 / divisor if divisor > TINY else 0.0
                        u, v = (fx * rx + fy * ry - fz) * inverse, (gx * rx + gy * ry - gz) * inverse
                        u, v = u - np.floor(u), v - np.floor(v)
                        # Trilinear: between the two levels whose texels match the texels that the sample covers.
                        area, level = footprint * inverse * inverse * inverse, 0
                        while area > 4.0 and level < last:
                            area *= 0.25
                            level += 1
                        finer = min(max((4.0 - area) / 3.0, 0.0), 1.0) if level < last else 1.0
                        red, green, blue = 0.0, 0.0, 0.0
                        for weight in (finer, 1.0 - finer):
                            if weight == 0.0:
                                break
                            packed, weight = texel(texels, levels, level, u, v), weight * (1.0 / 4096.0)
                            red += weight * (packed & 0xFFFFF)
                            green += weight * (packed >> 20 & 0xFFFFF)
                            blue += weight * (packed >> 40)
                            level += 1
                    elif coloured:
                        divisor = sx * rx + sy * ry - sz
                        inverse = 1.0 / divisor if divisor > TINY else 0.0
                        red, green = (fx * rx + fy * ry - fz) * inverse, (gx * rx + gy * ry - gz) * inverse
                        blue = (hx * rx + hy * ry - hz) * inverse
                    pixel = columns[x]
                    total[pixel, 0] += min(red * luminance, 255.0)
                    total[pixel, 1] += min(green * luminance, 255.0)
                    total[pixel, 2] += min(blue * luminance, 255.0)
                    total[pixel, 3] += share
                start = stop
        for column in range(left // n, right // n + 1):
            covered = total[column, 3]
            if covered > 0.0:
                for channel in range(3):
                    mean = total[column, channel] * share + (1.0 - covered) * background[channel]
                    image[row, column, channel] = int(min(max(mean, 0.0), 255.0) + 0.5)
                if image.shape[2] == 4:
                    image[row, column, 3] = int(255.0 * min(covered, 1.0) + 0.5)


@compiled
def _draw(scene, rotations, light, backgrounds, lens, out):
    n, vertices = lens.supersample, scene.vertices
    height, width = out.shape[1] * n, out.shape[2] * n
    step = 2.0 * lens.tan_half_fov / height
    xs = (np.arange(width) + (0.5 - 0.5 * width)) * step
    ys = ((0.5 * height - 0.5) - np.arange(height)) * step
    columns = np.arange(width) // n
    depth, owner = np.zeros((height, width), np.float32), np.full((height, width), -1, np.int32)
    floor, total = np.zeros((height // TILE + 1, width // TILE + 1), np.float32), np.zeros((out.shape[2], 4))
    p, screen = np.empty((vertices.shape[0], 3)), np.empty((vertices.shape[0], 2))
    for index in range(out.shape[0]):
        R, background, image = rotations[index], backgrounds[index], out[index]
        for k in range(vertices.shape[0]):
            x, y, z = vertices[k, 0], vertices[k, 1], vertices[k, 2]
            p[k, 0] = R[0, 0] * x + R[0, 1] * y + R[0, 2] * z
            p[k, 1] = R[1, 0] * x + R[1, 1] * y + R[1, 2] * z
            p[k, 2] = R[2, 0] * x + R[2, 1] * y + R[2, 2] * z - lens.distance
            screen[k, 0], screen[k, 1] = -p[k, 0] / p[k, 2], -p[k, 1] / p[k, 2]
        lx = R[0, 0] * light[0] + R[1, 0] * light[1] + R[2, 0] * light[2]
        ly = R[0, 1] * light[0] + R[1, 1] * light[1] + R[2, 1] * light[2]
        lz = R[0, 2] * light[0] + R[1, 2] * light[1] + R[2, 2] * light[2]
        image[:, :, :3] = background
        image[:, :, 3:] = 0
        box = _cover(p, screen, scene.faces, lens.near, step, xs, ys, depth, owner, floor)
        _shade(p, scene, light, (lx, ly, lz), background, lens, step, xs, ys, owner, box, columns, total, image)
        depth[box[2] : box[3] + 1, box[0] : box[1] + 1] = 0.0
        owner[box[2] : box[3] + 1, box[0] : box[1] + 1] = -1


def draw(
    scene: Scene, rotations: np.ndarray, light: np.ndarray, backgrounds: np.ndarray, lens: Lens, out: np.ndarray
) -> None:
    """Draw images into `out` (n, height, width, 3 or 4), uint8; a fourth channel takes the coverage.

    rotations (n, 3, 3) and light (3,), a unit vector towards the light in camera coordinates, are float64, backgrounds
    (n, 3) are uint8.
    """
    for _ in range(16):
        with contextlib.suppress(OSError):  # the cache cannot be written, say a full disk; what was compiled stays
            return _draw(scene, rotations, light, backgrounds, lens, out)
    return _draw(scene, rotations, light, backgrounds, lens, out)
