"""Patterns of tables and walls, and maps of rooms and landscapes that light a scene; each is drawn by a generator.

Colours are linear; maps are (height, 2 height, 3), polar angle by azimuth, y up. `photoreal.py` uses them.
"""

import math

import numpy as np
from PIL import Image

Rng = np.random.Generator


def log_uniform(rng: Rng, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def noise(rng: Rng, height: int, width: int, coarsest: int = 4, octaves: int = 5) -> np.ndarray:
    """Fractal noise between 0 and 1, periodic along no axis."""
    total = np.zeros((height, width))
    for k in range(octaves):
        grid = rng.random((coarsest << k, (coarsest << k) * width // height + 1)).astype(np.float32)
        total += np.asarray(Image.fromarray(grid).resize((width, height), Image.Resampling.BICUBIC)) * 0.55**k
    return (total - total.min()) / np.ptp(total)


def colour(rng: Rng, low: float = 0.05, high: float = 0.7, saturation: float = 0.6) -> np.ndarray:
    """A linear colour, more often pale than not."""
    hue = 0.5 + 0.5 * np.cos(2 * np.pi * (rng.random() + np.array([0, 1 / 3, 2 / 3])))
    return log_uniform(rng, low, high) * (1 - saturation * rng.random() ** 2 * (1 - hue))


def pattern(rng: Rng, side: int = 256) -> tuple[str, np.ndarray]:
    """A texture of a table or wall: its name and linear colours."""
    a, b, grain = colour(rng), colour(rng), noise(rng, side, side, 16, 4)[..., None]
    y, x = np.mgrid[:side, :side] / side
    n = rng.integers(4, 14)
    kind = rng.choice(["plain", "wood", "marble", "tiles", "checks", "dots", "collage"])
    if kind == "wood":
        long = noise(rng, side, side * 8, 6)[:, :side]
        share = 0.5 + 0.5 * np.sin(rng.uniform(20, 60) * (long + 0.4 * y))
        a, b = colour(rng, 0.1, 0.4) * (1.2, 0.8, 0.5), colour(rng, 0.05, 0.2) * (1.2, 0.8, 0.5)
    elif kind == "marble":
        share = np.abs(np.sin(6 * noise(rng, side, side, 3, 6) + 4 * x)) ** 0.4
    elif kind in ("tiles", "checks"):
        edge = np.minimum((x * n) % 1, (y * n) % 1) < 0.08
        share = edge if kind == "tiles" else (np.floor(x * n) + np.floor(y * n)) % 2
    elif kind == "dots":
        share = np.hypot((x * n) % 1 - 0.5, (y * n) % 1 - 0.5) < rng.uniform(0.15, 0.4)
    else:
        share = noise(rng, side, side) * rng.uniform(0, 0.4)
    image = a + np.asarray(share, float)[..., None] * (b - a)
    for _ in range(25 if kind == "collage" else 0):
        i, j, h, w = rng.integers(0, side, 2).tolist() + rng.integers(10, 90, 2).tolist()
        image[i : i + h, j : j + w] = colour(rng, saturation=1.0)
    return str(kind), (image * (0.8 + 0.3 * grain)).clip(0.01, 0.9)


def sphere_of_directions(height: int = 256) -> np.ndarray:
    """Directions (height, 2 height, 3) of a map of the environment, y up."""
    polar = (np.arange(height) + 0.5)[:, None] / height * np.pi
    azimuth = (np.arange(2 * height) + 0.5)[None] / height * np.pi
    across = np.sin(polar)
    return np.stack([across * np.cos(azimuth), np.cos(polar) + 0 * azimuth, across * np.sin(azimuth)], -1)


def room(rng: Rng) -> np.ndarray:
    """A box of walls with windows and lamps, shelves and pictures, seen from within."""
    d = sphere_of_directions()
    high, low = rng.uniform((1, 0.8, 1), (5, 2, 5)), -rng.uniform((1, 0.6, 1), (5, 1.5, 5))
    reach = np.where(d > 0, high, low) / np.where(np.abs(d) < 1e-9, 1e-9, d)
    axis = reach.argmin(-1)
    p = d * reach.min(-1, keepdims=True)
    side = np.take_along_axis(d, axis[..., None], -1)[..., 0] > 0
    along = np.where(axis == 0, p[..., 2], p[..., 0])
    painted = colour(rng, 0.2, 0.8, 1.0) * np.ones_like(d)
    painted[(axis == 0) & side] = colour(rng, 0.2, 0.8, 1.0)
    painted[(axis == 1) & side] = colour(rng, 0.5, 0.9, 0.1)
    painted[(axis == 1) & ~side] = colour(rng, 0.05, 0.4) * (1.1, 0.9, 0.7)
    emitted, nearness = np.zeros_like(d), np.full(d.shape[:2], 0.15)

    def mark(wall: int, positive: bool, up: float, half: np.ndarray) -> np.ndarray:
        middle = rng.uniform(0.7 * low[2 - wall], 0.7 * high[2 - wall])
        inside = (np.abs(along - middle) < half[0]) & (np.abs(p[..., 1] - up) < half[1])
        return inside & (axis == wall) & (side == positive)

    for _ in range(rng.integers(4, 14)):  # furniture, shelves, pictures
        up = rng.uniform(low[1], 0.6 * high[1])
        painted[mark(rng.choice([0, 2]), rng.random() < 0.5, up, rng.uniform(0.1, 0.8, 2))] = colour(rng, 0.02, 0.5)
    daylight = rng.random() < 0.75
    for _ in range(rng.integers(1, 4) if daylight else 0):
        seen = mark(rng.choice([0, 2]), rng.random() < 0.5, 0.3 * high[1], rng.uniform((0.4, 0.3), (1.2, 0.9)))
        bars = (np.abs(along * 2 % 1 - 0.5) < 0.06) | (np.abs(p[..., 1] * 2 % 1 - 0.5) < 0.06)
        emitted[seen & ~bars] = rng.uniform(6, 30) * np.array([0.85, 1, 1.2]) * rng.uniform(0.85, 1.15, 3)
    for _ in range(rng.integers(0, 3) if daylight else rng.integers(1, 5)):
        spot = np.array([rng.uniform(low[0], high[0]) * 0.8, high[1], rng.uniform(low[2], high[2]) * 0.8])
        seen = np.linalg.norm(p - spot, axis=-1) < rng.uniform(0.1, 0.5)
        emitted[seen] = rng.uniform(15, 80) * np.array([1.25, 1, 0.6]) ** rng.uniform(0, 1)
    for place in p[::16, ::16][emitted[::16, ::16].sum(-1) > 0]:
        nearness += 0.1 / (0.3 + ((p - place) ** 2).sum(-1))
    return painted * nearness[..., None] * (0.8 + 0.4 * noise(rng, *d.shape[:2])[..., None]) + emitted


def landscape(rng: Rng) -> np.ndarray:
    """Ground, trees or houses at the horizon, and a sky with clouds, with or without the sun."""
    d = sphere_of_directions()
    height, width = d.shape[:2]
    up = d[..., 1:2]
    sky = np.array([0.35, 0.6, 1.0]) + (1 - up.clip(0, 1)) ** 3 * np.array([0.5, 0.35, 0.0])
    cloud = ((noise(rng, height, width) - rng.uniform(0.2, 0.8)) * 4).clip(0, 1)[..., None]
    image = sky + cloud * (rng.uniform(0.8, 1.6) - sky)
    if rng.random() < 0.6:
        elevation, azimuth, size = rng.uniform(0.15, 1.3), rng.uniform(0, 2 * np.pi), rng.uniform(0.03, 0.12)
        to = [math.cos(elevation) * math.cos(azimuth), math.sin(elevation), math.cos(elevation) * math.sin(azimuth)]
        warmth = np.array([1, 0.9, 0.75]) ** (1 / elevation)
        image = image + rng.uniform(2, 8) / size**2 * warmth * np.exp((d @ np.array(to) - 1)[..., None] / size**2)
    skyline = noise(rng, 8, width, 8)[4] if rng.random() < 0.5 else np.repeat(rng.random(width // 16), 16)
    things = up < 0.45 * rng.random() * skyline[:, None]
    shade = colour(rng, 0.05, 0.4) * (0.5 + noise(rng, height, width, 16)[..., None])
    ground = colour(rng, 0.08, 0.4) * (0.5 + noise(rng, height, width, 8)[..., None])
    return np.where(up < 0, ground, np.where(things, shade, image))
