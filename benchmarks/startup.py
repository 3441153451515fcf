"""CPU seconds of starting up, and memory of a million rotations, each in a process of its own."""

import json
import resource
import statistics
import subprocess
import sys

from benchmarks.measure import Figure

MILLION = """
import resource, torch, json
from aquamam.checkpoint import build
from aquamam.presets import PRESETS
from aquamam.rotations import random_quat
model = build("aquamam", PRESETS["die"].model.to_dict()).eval()
q = random_quat((1_000_000, 1))
with torch.inference_mode():
    posterior = model(torch.rand(1, 3, 224, 224))
    posterior.log_prob(q[:10])
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    posterior.log_prob(q)
print(json.dumps((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6))
"""


def cpu_seconds(command: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def figures(rounds: int, million: bool = False) -> list[Figure]:
    """`--help` in CPU seconds; with `million`, the gigabytes that a million rotations take beyond the model (minutes)."""
    help_seconds = statistics.median(cpu_seconds([sys.executable, "-m", "aquamam", "--help"]) for _ in range(rounds))
    result = [Figure("aquamam --help, CPU seconds", help_seconds, "target", 0.4, 0.4 / help_seconds, 1.0, rounds)]
    if million:
        out = subprocess.run([sys.executable, "-c", MILLION], check=True, capture_output=True, text=True).stdout
        gigabytes = float(json.loads(out))
        result.append(
            Figure("a million rotations of one image, GB", gigabytes, "target", 1.5, 1.5 / max(gigabytes, 1e-3), 1.0, 1)
        )
    return result
