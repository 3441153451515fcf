"""CPU seconds of starting up, and memory of a million rotations, each in a process of its own."""

import json
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image

from benchmarks.measure import Figure, at_most

MILLION = """
import torch, json
from aquamam.checkpoints.checkpoint import build
from aquamam.training.presets import PRESETS
from aquamam.geometry.rotations import random_quat
def peak():  # kilobytes; a process inherits the peak that getrusage tells from the one which started it
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))

model = build("aquamam", PRESETS["{preset}"].model.to_dict()).eval()
size = model.config.image_size
q = random_quat((1_000_000, 1))
with torch.inference_mode():
    posterior = model(torch.rand(1, 3, size, size))
    posterior.log_prob(q[:10])
    before = peak()
    posterior.log_prob(q)
print(json.dumps((peak() - before) / 1e6))
"""


def cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def figures(rounds: int) -> list[Figure]:
    """`--help` and one prediction with the bundled model."""
    aquamam = [sys.executable, "-m", "aquamam"]
    with tempfile.TemporaryDirectory() as folder:
        image = Path(folder) / "image.png"
        Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(image)
        commands = {"--help": ([*aquamam, "--help"], 0.4), "predict": ([*aquamam, "predict", str(image)], 3.0)}
        return [
            at_most(f"aquamam {name}, CPU s", statistics.median(cpu_seconds(c) for _ in range(rounds)), limit, rounds)
            for name, (c, limit) in commands.items()
        ]


def million(preset: str = "die") -> Figure:
    """Gigabytes that a million rotations of one image take beyond the model: ten minutes with the die-sized one."""
    out = subprocess.run(
        [sys.executable, "-c", MILLION.format(preset=preset)], check=True, capture_output=True, text=True
    ).stdout
    return at_most(f"a million rotations of one image ({preset}), GB", float(json.loads(out)), 1.5, 1)
