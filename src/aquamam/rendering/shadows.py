"""Which corners of a mesh the light reaches: found once a mesh, from many directions, and looked up in every picture.

Ambient light reaches a corner from the directions of its hemisphere in which nothing of the mesh stands before it. A
lamp's light reaches it as far as the directions next to the lamp's see it, which makes soft shadows.
"""

import numpy as np
from jaxtyping import Bool, Float32, Float64
from scipy.spatial.transform import Rotation

from aquamam.rendering.raster import TILE, Scene, _cover, compiled

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
