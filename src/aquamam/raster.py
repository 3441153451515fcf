"""Triangles to pixels: one compiled loop over images, and its NumPy twin for where numba is missing.

A camera sits at the origin of eye space and looks along -z; sample (row, column) sends the ray r = (x, y, -1).
For a triangle with corners a, b, c in eye space

    e_a = r . (b x c),   e_b = r . (c x a),   e_c = r . (a x b),   V = a . (b x c),   S = e_a + e_b + e_c

the ray meets it where all e have the sign of V, at depth V / S, with barycentric coordinates e / S. This is true for
any depth, so that triangles need no clipping; and the two triangles on an edge compute exactly opposite e, so that
no sample falls between them. Attributes (normal, uv, colour) are linear in r up to the common divisor S.
"""

from typing import NamedTuple, no_type_check

import numpy as np

try:
    import numba
except ImportError:  # pragma: no cover - the twin below is tested by name
    numba = None


def _compiled(function):
    """Compile without fast-math, so that bytes are the same everywhere, and keep the machine code on disk."""
    if numba is None:
        return function
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
    texels: np.ndarray  # (N,) uint8, the levels of the texture one after another
    levels: np.ndarray  # (L, 3) int64: offset, height, width


class Views(NamedTuple):
    """One row an image."""

    rotations: np.ndarray  # (n, 3, 3) float64
    lights: np.ndarray  # (n, 3) float64, unit, towards the light, in camera coordinates
    backgrounds: np.ndarray  # (n, 3) uint8


class Lens(NamedTuple):
    """Camera and light, the same for all images."""

    distance: float
    tan_half_fov: float  # of the vertical angle of view
    near: float
    diffuse: float
    ambient: float
    supersample: int


@_compiled
@no_type_check
def _edges(p, a, b, c):
    """Planes of the three edges, turned so that inside is positive, and |V| with its sign."""
    ax, ay, az = p[a, 0], p[a, 1], p[a, 2]
    bx, by, bz = p[b, 0], p[b, 1], p[b, 2]
    cx, cy, cz = p[c, 0], p[c, 1], p[c, 2]
    ux, uy, uz = by * cz - bz * cy, bz * cx - bx * cz, bx * cy - by * cx
    vx, vy, vz = cy * az - cz * ay, cz * ax - cx * az, cx * ay - cy * ax
    wx, wy, wz = ay * bz - az * by, az * bx - ax * bz, ax * by - ay * bx
    volume = ax * ux + ay * uy + az * uz
    s = 1.0 if volume > 0.0 else -1.0
    return s * ux, s * uy, s * uz, s * vx, s * vy, s * vz, s * wx, s * wy, s * wz, s * volume, s


@_compiled
@no_type_check
def _bounds(p, face, near, step, width, height):
    """Rows and columns of samples that the part of a triangle beyond the near plane can touch."""
    x0, x1, y0, y1 = 1e9, -1e9, 1e9, -1e9
    for i in range(3):
        a, b = face[i], face[(i + 1) % 3]
        za, zb = -p[a, 2], -p[b, 2]
        if za >= near:
            x, y = p[a, 0] / (za * step), -p[a, 1] / (za * step)
            x0, x1, y0, y1 = min(x0, x), max(x1, x), min(y0, y), max(y1, y)
        if (za >= near) != (zb >= near):
            t = (near - za) / (zb - za)
            x = (p[a, 0] + t * (p[b, 0] - p[a, 0])) / (near * step)
            y = -(p[a, 1] + t * (p[b, 1] - p[a, 1])) / (near * step)
            x0, x1, y0, y1 = min(x0, x), max(x1, x), min(y0, y), max(y1, y)
    # Sample i stands at i + 1/2; the hundredth covers rounding, exact tests follow.
    left = int(np.ceil(max(x0 + 0.5 * width - 0.51, 0.0)))
    right = int(np.floor(min(x1 + 0.5 * width - 0.49, width - 1.0)))
    top = int(np.ceil(max(y0 + 0.5 * height - 0.51, 0.0)))
    bottom = int(np.floor(min(y1 + 0.5 * height - 0.49, height - 1.0)))
    return left, right, top, bottom


@_compiled
@no_type_check
def _bilinear(texels, offset, height, width, u, v):
    """Red, green, blue between the four nearest texels; the texture repeats."""
    x, y = u * width - 0.5, (1.0 - v) * height - 0.5
    fx, fy = np.floor(x), np.floor(y)
    i, j = int(fx), int(fy)
    fx, fy = x - fx, y - fy
    i0 = i if i >= 0 else width - 1
    j0 = j if j >= 0 else height - 1
    i1 = i + 1 if i + 1 < width else 0
    j1 = j + 1 if j + 1 < height else 0
    a, b = offset + 3 * (j0 * width + i0), offset + 3 * (j0 * width + i1)
    c, d = offset + 3 * (j1 * width + i0), offset + 3 * (j1 * width + i1)
    wa, wb, wc, wd = (1 - fx) * (1 - fy), fx * (1 - fy), (1 - fx) * fy, fx * fy
    red = wa * texels[a] + wb * texels[b] + wc * texels[c] + wd * texels[d]
    green = wa * texels[a + 1] + wb * texels[b + 1] + wc * texels[c + 1] + wd * texels[d + 1]
    blue = wa * texels[a + 2] + wb * texels[b + 2] + wc * texels[c + 2] + wd * texels[d + 2]
    return red, green, blue


@_compiled
@no_type_check
def _cover(p, faces, near, step, xs, ys, depth, owner):
    """Keep for every sample the nearest face and its inverse depth; return the box of samples touched."""
    height, width = depth.shape
    box = (width, -1, height, -1)
    inverse_near = 1.0 / near
    for f in range(faces.shape[0]):
        left, right, top, bottom = _bounds(p, faces[f], near, step, width, height)
        if left > right or top > bottom:
            continue
        ax, ay, az, bx, by, bz, cx, cy, cz, volume, _ = _edges(p, faces[f, 0], faces[f, 1], faces[f, 2])
        if not volume > 0.0:
            continue  # seen edge-on
        dx, dy, dz = (ax + bx + cx) / volume, (ay + by + cy) / volume, (az + bz + cz) / volume
        box = (min(box[0], left), max(box[1], right), min(box[2], top), max(box[3], bottom))
        for y in range(top, bottom + 1):
            a, b, c, d = ay * ys[y] - az, by * ys[y] - bz, cy * ys[y] - cz, dy * ys[y] - dz
            lo, hi = left, right
            if right - left > 8:  # divide for the span of a wide row, then let the exact tests trim it
                for nx, rest in ((ax, a), (bx, b), (cx, c)):
                    if nx != 0.0:
                        edge = min(max(-rest / (nx * step) + 0.5 * width - 0.5, -2.0), width + 1.0)
                        if nx > 0.0:
                            lo = max(lo, int(np.floor(edge)))
                        else:
                            hi = min(hi, int(np.ceil(edge)))
            while lo <= hi and (ax * xs[lo] + a < 0.0 or bx * xs[lo] + b < 0.0 or cx * xs[lo] + c < 0.0):
                lo += 1
            while lo <= hi and (ax * xs[hi] + a < 0.0 or bx * xs[hi] + b < 0.0 or cx * xs[hi] + c < 0.0):
                hi -= 1
            for x in range(lo, hi + 1):
                inverse = dx * xs[x] + d
                if inverse > depth[y, x] and inverse <= inverse_near:
                    depth[y, x] = inverse
                    owner[y, x] = f
    return box


@_compiled
@no_type_check
def _face_planes(p, scene, f, light, lens, step, planes):
    """Planes of all attributes of a face; returns its flat luminance and the constant of its texel footprint."""
    faces, uv = scene.faces, scene.uv
    ax, ay, az, bx, by, bz, cx, cy, cz, _, s = _edges(p, faces[f, 0], faces[f, 1], faces[f, 2])
    sx, sy, sz = ax + bx + cx, ay + by + cy, az + bz + cz
    planes[0, 0], planes[0, 1], planes[0, 2] = sx, sy, sz
    luminance, footprint = 0.0, 0.0
    if scene.normals.shape[0] > 0:
        for k in range(3):  # turned towards the viewer: faces have two sides
            na, nb, nc = -s * scene.normals[f, 0, k], -s * scene.normals[f, 1, k], -s * scene.normals[f, 2, k]
            planes[1 + k, 0] = na * ax + nb * bx + nc * cx
            planes[1 + k, 1] = na * ay + nb * by + nc * cy
            planes[1 + k, 2] = na * az + nb * bz + nc * cz
    else:  # (sx, sy, sz) is the normal that looks away from the viewer
        cosine = -(sx * light[0] + sy * light[1] + sz * light[2]) / np.sqrt(sx * sx + sy * sy + sz * sz)
        luminance = lens.ambient + lens.diffuse * max(cosine, 0.0)
    if scene.levels.shape[0] > 0:
        for k in range(2):
            ta, tb, tc = float(uv[f, 0, k]), float(uv[f, 1, k]), float(uv[f, 2, k])
            planes[4 + k, 0] = ta * ax + tb * bx + tc * cx
            planes[4 + k, 1] = ta * ay + tb * by + tc * cy
            planes[4 + k, 2] = ta * az + tb * bz + tc * cz
        minor_x = planes[4, 1] * planes[5, 2] - planes[4, 2] * planes[5, 1]
        minor_y = planes[4, 2] * planes[5, 0] - planes[4, 0] * planes[5, 2]
        minor_z = planes[4, 0] * planes[5, 1] - planes[4, 1] * planes[5, 0]
        jacobian = abs(sx * minor_x + sy * minor_y + sz * minor_z)  # d(u, v) / d(x, y) = jacobian / S^3
        footprint = jacobian * step * step * scene.levels[0, 1] * scene.levels[0, 2]
    elif scene.colours.shape[0] > 1:
        for k in range(3):
            ta, tb, tc = float(scene.colours[f, 0, k]), float(scene.colours[f, 1, k]), float(scene.colours[f, 2, k])
            planes[6 + k, 0] = ta * ax + tb * bx + tc * cx
            planes[6 + k, 1] = ta * ay + tb * by + tc * cy
            planes[6 + k, 2] = ta * az + tb * bz + tc * cz
    return luminance, footprint


@_compiled
@no_type_check
def _texture(texels, levels, u, v, area):
    """Trilinear: between the two levels whose texels match `area`, the texels of the finest level a sample covers."""
    u, v = u - np.floor(u), v - np.floor(v)
    level, size = 0, np.sqrt(area)
    while size > 2.0 and level < levels.shape[0] - 1:
        size *= 0.5
        level += 1
    red, green, blue = _bilinear(texels, levels[level, 0], levels[level, 1], levels[level, 2], u, v)
    if size > 1.0 and level < levels.shape[0] - 1:
        t = size - 1.0
        level += 1
        r, g, b = _bilinear(texels, levels[level, 0], levels[level, 1], levels[level, 2], u, v)
        red, green, blue = red + t * (r - red), green + t * (g - green), blue + t * (b - blue)
    return red, green, blue


@_compiled
@no_type_check
def _shade(p, scene, light, object_light, background, lens, step, xs, ys, owner, box, planes, image):
    """Colour every sample of its nearest face and average the samples of a pixel."""
    n = lens.supersample
    smooth, textured, coloured = scene.normals.shape[0] > 0, scene.levels.shape[0] > 0, scene.colours.shape[0] > 1
    lx, ly, lz = object_light
    left, right, top, bottom = box
    face, luminance, footprint = -1, 0.0, 0.0
    red, green, blue = float(scene.colours[0, 0, 0]), float(scene.colours[0, 0, 1]), float(scene.colours[0, 0, 2])
    for i in range(top // n, bottom // n + 1):
        for j in range(left // n, right // n + 1):
            total_r, total_g, total_b, covered = 0.0, 0.0, 0.0, 0
            for y in range(i * n, i * n + n):
                for x in range(j * n, j * n + n):
                    f = owner[y, x]
                    if f < 0:
                        continue
                    covered += 1
                    if f != face:
                        face = f
                        luminance, footprint = _face_planes(p, scene, f, light, lens, step, planes)
                    rx, ry = xs[x], ys[y]
                    if smooth:
                        nx = planes[1, 0] * rx + planes[1, 1] * ry - planes[1, 2]
                        ny = planes[2, 0] * rx + planes[2, 1] * ry - planes[2, 2]
                        nz = planes[3, 0] * rx + planes[3, 1] * ry - planes[3, 2]
                        norm = np.sqrt(nx * nx + ny * ny + nz * nz)
                        cosine = (nx * lx + ny * ly + nz * lz) / norm if norm > 0.0 else 0.0
                        luminance = lens.ambient + lens.diffuse * max(cosine, 0.0)
                    if textured or coloured:
                        inverse = 1.0 / (planes[0, 0] * rx + planes[0, 1] * ry - planes[0, 2])
                        if textured:
                            u = (planes[4, 0] * rx + planes[4, 1] * ry - planes[4, 2]) * inverse
                            v = (planes[5, 0] * rx + planes[5, 1] * ry - planes[5, 2]) * inverse
                            area = footprint * inverse * inverse * inverse
                            red, green, blue = _texture(scene.texels, scene.levels, u, v, area)
                        else:
                            red = (planes[6, 0] * rx + planes[6, 1] * ry - planes[6, 2]) * inverse
                            green = (planes[7, 0] * rx + planes[7, 1] * ry - planes[7, 2]) * inverse
                            blue = (planes[8, 0] * rx + planes[8, 1] * ry - planes[8, 2]) * inverse
                    total_r += min(red * luminance, 255.0)
                    total_g += min(green * luminance, 255.0)
                    total_b += min(blue * luminance, 255.0)
            if covered > 0:
                empty, share = n * n - covered, 1.0 / (n * n)
                image[i, j, 0] = int((total_r + empty * background[0]) * share + 0.5)
                image[i, j, 1] = int((total_g + empty * background[1]) * share + 0.5)
                image[i, j, 2] = int((total_b + empty * background[2]) * share + 0.5)
                if image.shape[2] == 4:
                    image[i, j, 3] = int(255.0 * covered * share + 0.5)


@_compiled
@no_type_check
def draw(scene, views, lens, out):
    """Draw n images into `out` (n, height, width, 3 or 4), uint8; a fourth channel takes the coverage."""
    n = lens.supersample
    height, width = out.shape[1] * n, out.shape[2] * n
    step = 2.0 * lens.tan_half_fov / height
    xs = (np.arange(width) + 0.5 - 0.5 * width) * step
    ys = (0.5 * height - 0.5 - np.arange(height)) * step
    depth, owner = np.zeros((height, width), np.float32), np.full((height, width), -1, np.int32)
    vertices = scene.vertices
    p, planes = np.empty_like(vertices), np.empty((9, 3))
    for index in range(out.shape[0]):
        R, light, image = views.rotations[index], views.lights[index], out[index]
        for k in range(vertices.shape[0]):
            x, y, z = vertices[k, 0], vertices[k, 1], vertices[k, 2]
            p[k, 0] = R[0, 0] * x + R[0, 1] * y + R[0, 2] * z
            p[k, 1] = R[1, 0] * x + R[1, 1] * y + R[1, 2] * z
            p[k, 2] = R[2, 0] * x + R[2, 1] * y + R[2, 2] * z - lens.distance
        object_light = (
            R[0, 0] * light[0] + R[1, 0] * light[1] + R[2, 0] * light[2],
            R[0, 1] * light[0] + R[1, 1] * light[1] + R[2, 1] * light[2],
            R[0, 2] * light[0] + R[1, 2] * light[1] + R[2, 2] * light[2],
        )
        for channel in range(image.shape[2]):
            image[:, :, channel] = views.backgrounds[index, channel] if channel < 3 else 0
        box = _cover(p, scene.faces, lens.near, step, xs, ys, depth, owner)
        _shade(p, scene, light, object_light, views.backgrounds[index], lens, step, xs, ys, owner, box, planes, image)
        left, right, top, bottom = box
        if left <= right:
            depth[top : bottom + 1, left : right + 1] = 0.0
            owner[top : bottom + 1, left : right + 1] = -1


def backends(name):
    return draw
