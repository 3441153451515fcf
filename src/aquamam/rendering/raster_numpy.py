"""The rasteriser without numba: the same pictures within one level, some twenty times slower.

The formulas are those of `raster`, in the same order of operations, over all faces or all samples at once.
"""

import numpy as np

from aquamam.rendering import raster
from aquamam.rendering.raster import TINY, Lens, Rays, Scene, Views


def _plain(function):
    """The Python function inside a compiled one."""
    return getattr(function, "py_func", function)


def _columns(v):
    return v[..., 0], v[..., 1], v[..., 2]


def _cover(p, E, volume, faces, near, step, xs, ys):
    """Owners of the samples, one face after another."""
    height, width = len(ys), len(xs)
    depth, owner = np.zeros((height, width), np.float32), np.full((height, width), -1, np.int32)
    middle_x, middle_y, per_step = 0.5 * width - 0.5, 0.5 * height - 0.5, 1.0 / step
    z = -p[faces][..., 2]
    with np.errstate(all="ignore"):
        corners = -p[faces][..., :2] / p[faces][..., 2:]
        low, high = corners.min(1), corners.max(1)
        u, v, w = corners.swapaxes(0, 1)
        turn = (v[:, 0] - u[:, 0]) * (w[:, 1] - u[:, 1]) - (w[:, 0] - u[:, 0]) * (v[:, 1] - u[:, 1])
        for f in np.flatnonzero((z.min(1) < near) & (z.max(1) >= near)):
            (low[f, 0], high[f, 0], low[f, 1], high[f, 1]) = _plain(raster._near_box)(*p[faces[f]].ravel(), near)
        left = np.ceil(np.clip(low[:, 0] * per_step + middle_x - 0.01, 0, width))
        right = np.floor(np.clip(high[:, 0] * per_step + middle_x + 0.01, -1, width - 1))
        top = np.ceil(np.clip(middle_y - high[:, 1] * per_step, 0, height))
        bottom = np.floor(np.clip(middle_y - low[:, 1] * per_step, -1, height - 1))
        D = (E[:, 0] + E[:, 1] + E[:, 2]) * (1.0 / volume)[:, None]
        level = np.abs(E[..., 0]) < TINY
        scale = -1.0 / (E[..., 0] * step)
        slope, rest = np.where(level, 0.0, E[..., 1] * scale), np.where(level, 0.0, middle_x - E[..., 2] * scale)
    to_left = np.where(level | (E[..., 0] < 0), -np.inf, 0.0)
    to_right = np.where(level | (E[..., 0] > 0), np.inf, 0.0)
    drawn = np.flatnonzero((z.max(1) >= near) & (left <= right) & (top <= bottom) & (volume > 0))
    turned_away = ((turn < 0) & (z.min(1) >= near))[drawn]
    for f in (*drawn[~turned_away], *drawn[turned_away]):
        rows, cols = slice(int(top[f]), int(bottom[f]) + 1), slice(int(left[f]), int(right[f]) + 1)
        cut = slope[f] * ys[rows, None] + rest[f]
        lo, hi = np.ceil((cut + to_left[f]).max(1)), np.floor((cut + to_right[f]).min(1))
        inverse = (D[f, 0] * xs[cols] + (D[f, 1] * ys[rows, None] - D[f, 2])).astype(np.float32)
        x = np.arange(cols.start, cols.stop)
        won = (x >= lo[:, None]) & (x <= hi[:, None]) & (inverse > depth[rows, cols]) & (inverse <= 1.0 / near)
        depth[rows, cols][won] = inverse[won]
        owner[rows, cols][won] = f
    return owner


def _texture(scene, u, v, area):
    """Trilinear texture of many samples."""
    last = len(scene.levels) - 1
    u, v = u - np.floor(u), v - np.floor(v)
    level = np.zeros(len(u), int)
    for _ in range(last):
        more = (area > 4.0) & (level < last)
        area, level = np.where(more, area * 0.25, area), level + more
    finer = np.where(level < last, np.clip((4.0 - area) / 3.0, 0.0, 1.0), 1.0)
    colour = np.zeros((len(u), 3))
    for weight, at in ((finer, level), (1.0 - finer, np.minimum(level + 1, last))):
        offset, height, width = scene.levels[at].T
        tx, ty = u * width - 0.5, (1.0 - v) * height - 0.5
        i, j = np.floor(tx).astype(int), np.floor(ty).astype(int)
        wx, wy = ((tx - i) * 64.0 + 0.5).astype(int), ((ty - j) * 64.0 + 0.5).astype(int)
        i1, j1 = (i + 1) % width, offset + (j + 1) % height * width
        i0, j0 = i % width, offset + j % height * width
        upper = scene.texels[j0 + i0] * (64 - wx) + scene.texels[j0 + i1] * wx
        lower = scene.texels[j1 + i0] * (64 - wx) + scene.texels[j1 + i1] * wx
        packed = upper * (64 - wy) + lower * wy
        colour += (weight / 4096.0)[:, None] * np.stack([packed & 0xFFFFF, packed >> 20 & 0xFFFFF, packed >> 40], -1)
    return colour


def _shade(scene, E, turn, light, object_light, lens, step, x, y, f):
    """Colours of samples on rays (x, y, -1) that see faces f."""

    def at(values):  # an attribute of the corners, at the samples, times the divisor S
        planes = values[:, 0, None] * E[:, 0] + values[:, 1, None] * E[:, 1] + values[:, 2, None] * E[:, 2]
        return planes, planes[f, 0] * x + planes[f, 1] * y - planes[f, 2]

    ones, divisor = at(np.ones((len(E), 3)))
    inverse = np.where(divisor > TINY, 1.0 / np.maximum(divisor, TINY), 0.0)
    if len(scene.normals):
        normal = np.stack([at(turn[:, None] * scene.normals[..., k])[1] for k in range(3)], -1)
        cosine = normal @ object_light / np.maximum(np.sqrt((normal * normal).sum(-1)), 1e-300)
    else:
        cosine = (-(ones @ light) / np.maximum(np.sqrt((ones * ones).sum(-1)), 1e-300))[f]
    if len(scene.levels):
        (planes_u, u), (planes_v, v) = (at(scene.uv[..., k].astype(float)) for k in range(2))
        jacobian = np.abs((ones * np.cross(planes_u, planes_v)).sum(-1))
        footprint = jacobian * step * step * (scene.levels[0, 1] * scene.levels[0, 2])
        colour = _texture(scene, u * inverse, v * inverse, footprint[f] * inverse * inverse * inverse)
    elif len(scene.colours) > 1:
        colour = np.stack([at(scene.colours[..., k].astype(float))[1] * inverse for k in range(3)], -1)
    else:
        colour = scene.colours[0, 0].astype(float)
    return np.minimum(colour * (lens.ambient + lens.diffuse * np.maximum(cosine, 0.0))[:, None], 255.0)


def draw_numpy(scene: Scene, views: Views, lens: Lens, out: np.ndarray) -> None:
    """Draw n images into `out`, as `raster.draw` does."""
    n, (step, xs, ys, _) = lens.supersample, Rays.of(lens, out)
    height, width = len(ys), len(xs)
    for R, light, background, image in zip(views.rotations, views.lights, views.backgrounds, out, strict=True):
        x, y, z = _columns(scene.vertices)
        p = np.stack([R[k, 0] * x + R[k, 1] * y + R[k, 2] * z for k in range(3)], -1)
        p[:, 2] -= lens.distance
        a, b, c = (p[scene.faces[:, k]] for k in range(3))
        E = np.stack(
            [np.stack(_plain(raster._cross)(*_columns(s), *_columns(t)), -1) for s, t in ((b, c), (c, a), (a, b))], 1
        )
        volume = a[:, 0] * E[:, 0, 0] + a[:, 1] * E[:, 0, 1] + a[:, 2] * E[:, 0, 2]
        sign = np.where(volume > 0, 1.0, -1.0)
        E, volume = E * sign[:, None, None], volume * sign
        owner = _cover(p, E, volume, scene.faces, lens.near, step, xs, ys)
        row, column = np.nonzero(owner >= 0)
        samples = np.empty((height, width, 3))
        samples[:] = background
        samples[row, column] = _shade(
            scene, E, -sign, light, R.T @ light, lens, step, xs[column], ys[row], owner[row, column]
        )
        shape = (height // n, n, width // n, n, 3)
        image[..., :3] = (samples.reshape(shape).mean((1, 3)).clip(0, 255) + 0.5).astype(np.uint8)
        if image.shape[2] == 4:
            image[..., 3] = ((owner >= 0).reshape(shape[:4]).mean((1, 3)) * 255 + 0.5).astype(np.uint8)
