"""Training beside other work: images a second of die-small with two threads beside busy loops, with OpenMP's threads
waiting passively, as `import aquamam` sets it, and without that setting.

Each measurement is a process of its own, as OpenMP reads the setting once.
"""

import os
import subprocess
import sys

from aquamam import WAITING
from benchmarks.measure import Figure

BATCH = 128
STEPS = """
import sys, time, torch  # torch first: aquamam must not say how to wait here
from aquamam.checkpoints.checkpoint import build
from aquamam.geometry.rotations import random_quat
from aquamam.training.presets import PRESETS

torch.set_num_threads(2)
model = build("aquamam", PRESETS["die-small"].model.to_dict()).train()
batch, seconds = int(sys.argv[1]), float(sys.argv[2])
images, q = torch.rand(batch, 3, 64, 64), random_quat((1, batch))

def step():
    model.zero_grad(set_to_none=True)
    model.loss(images, q).backward()

step()
count, start = 0, time.perf_counter()
while count < 2 or time.perf_counter() - start < seconds:
    step()
    count += 1
print((time.perf_counter() - start) / count)
"""


def seconds_a_step(loops: int, passive: bool, seconds: float) -> float:
    env = {key: value for key, value in os.environ.items() if key not in (*WAITING, "OMP_NUM_THREADS")}
    env |= WAITING if passive else {}
    busy = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(loops)]
    try:
        command = [sys.executable, "-c", STEPS, str(BATCH), str(seconds)]
        return float(subprocess.run(command, env=env, check=True, capture_output=True, text=True).stdout)
    finally:
        for process in busy:
            process.kill()
            process.wait()


def figures(rounds: int) -> list[Figure]:
    """Seconds of a step, in turns, the least of each side; images a second stand in the last column."""
    found = []
    for loops in (0, 1, 2):
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(max(1, rounds // 2)):
            for side, passive in enumerate((True, False)):
                times[side].append(seconds_a_step(loops, passive, 2.0 * rounds))
        ours, other = min(times[0]), min(times[1])
        rates = f"{BATCH / ours:,.0f} images/s against {BATCH / other:,.0f}"
        name = f"training step of die-small beside {loops} busy loop{'' if loops == 1 else 's'}"
        against = f"with threads that spin: {rates}"
        least = 0.95 if loops == 0 else 1.0
        found.append(Figure(name=name, ours=ours, other=other, against=against, at_least=least, rounds=rounds))
    return found
