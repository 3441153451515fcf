"""Images per CPU second on one core, 2 x 2 samples a pixel: python benchmarks/rendering.py [--rounds 7].

Prints a table, then one JSON line a figure. A round renders a batch of random rotations; the figure is the best round,
because what else the machine does can only take time, and the median stands beside it.
"""

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
import time

import numpy as np

from aquamam.rendering.meshes import Mesh, crease_normals
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid


def bumpy_ball(facets: int = 100, bands: int = 101) -> Mesh:
    """A smooth-shaded ball with bumps and vertex colours, 2 facets (bands - 1) = 20,000 triangles."""
    polar, turn = np.meshgrid(np.linspace(0, np.pi, bands + 1), 2 * np.pi * np.arange(facets) / facets, indexing="ij")
    radius = 1.5 + 0.12 * np.sin(7 * turn) * np.sin(polar) ** 2 * np.cos(5 * polar)
    x, y, z = np.sin(polar) * np.cos(turn), np.cos(polar), np.sin(polar) * np.sin(turn)
    vertices = np.stack([radius * x, radius * y, radius * z], -1).reshape(-1, 3)
    i, j = np.meshgrid(np.arange(bands), np.arange(facets), indexing="ij")
    a, b, k = i * facets + j, i * facets + (j + 1) % facets, facets
    quads = [np.stack([a, b, b + k], -1)[1:], np.stack([a, b + k, a + k], -1)[:-1]]
    faces = np.concatenate([q.reshape(-1, 3) for q in quads]).astype(np.int32)
    colours = (np.stack([x, y, z], -1).reshape(-1, 3) * 60 + 110).astype(np.uint8)
    normals = crease_normals(vertices, faces, 60)
    return Mesh(vertices=vertices, faces=faces, normals=normals, colours=colours, name="bumpy ball")


def random_quats(n: int) -> np.ndarray:
    q = np.random.default_rng(0).normal(size=(n, 4))
    return q / np.linalg.norm(q, axis=1, keepdims=True)


def rates(mesh: Mesh, size: int, count: int, rounds: int) -> list[float]:
    """Images per CPU second of each round, best first."""
    settings, q = RenderSettings(size=size, supersample=2), random_quats(count)
    render(mesh, q[:1], settings)  # compiles, and builds the texture's levels
    seconds = []
    for _ in range(rounds):
        start = time.process_time()
        render(mesh, q, settings)
        seconds.append(time.process_time() - start)
    return [count / s for s in sorted(seconds)]


def first_call_seconds(cache: str) -> float:
    """CPU seconds of a new process's first image, imports not counted."""
    code = (
        "import time, numpy as np; from aquamam.rendering import raster;"
        "from aquamam.rendering.render import RenderSettings, render;"
        "from aquamam.rendering.solids import solid; mesh = solid('die').mesh; start = time.process_time();"
        "render(mesh, np.eye(3), RenderSettings(size=16)); print(time.process_time() - start)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "NUMBA_CACHE_DIR": cache},
        check=True,
        capture_output=True,
        text=True,
    )
    return float(run.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    ball = bumpy_ball()
    assert len(ball.faces) == 20_000
    figures = []
    for name, mesh, size, count, target in (
        ("die", solid("die").mesh, 224, 60, 180),
        ("die", solid("die").mesh, 64, 400, 1500),
        ("20,000 triangles", ball, 224, 40, 120),
        ("20,000 triangles", ball, 64, 100, None),
        ("cylinder", solid("cylinder").mesh, 224, 60, None),
        ("sphereX", solid("sphereX").mesh, 224, 40, None),
    ):
        rate = rates(mesh, size, count, rounds)
        figures.append(
            {
                "object": name,
                "pixels": size,
                "best": round(rate[0]),
                "median": round(float(np.median(rate))),
                "target": target,
            }
        )
    print(f"{'object':<18}{'pixels':>7}{'images/CPU s':>14}{'median':>9}{'target':>9}")
    for f in figures:
        print(f"{f['object']:<18}{f['pixels']:>7}{f['best']:>14,}{f['median']:>9,}{f['target'] or '':>9}")
    with tempfile.TemporaryDirectory() as cache:
        compiles = {"first call, compiling": first_call_seconds(cache), "first call, cached": first_call_seconds(cache)}
    for name, seconds in compiles.items():
        print(f"{name:<25}{seconds:>14.2f} CPU s")
    about = {
        "benchmark": "rendering",
        "unit": "images per CPU second",
        "cpu": platform.processor() or platform.machine(),
    }
    for f in figures:
        print(json.dumps({**about, **f}))
    for name, seconds in compiles.items():
        print(json.dumps({"benchmark": "rendering", "unit": "CPU seconds", "object": name, "best": round(seconds, 2)}))


if __name__ == "__main__":
    main()
