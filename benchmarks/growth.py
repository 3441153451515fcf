"""How cost grows: seconds of log-likelihoods against the number of rotations, bins, patches and images, with slopes in
log-log.

A slope of one is linear growth. Rotations and images are linear once there are enough to fill the machine; bins cost
next to nothing until the head outweighs the layers; patches are linear in the layers and square in attention, so a
little above one.
"""

import math
from collections.abc import Callable
from pathlib import Path

import torch

from aquamam.geometry.rotations import random_quat
from aquamam.network.model import AQuaMaM, ModelConfig
from benchmarks.measure import Figure, at_most, median_seconds

PICTURE = Path(__file__).parents[1] / "docs" / "growth.png"
MODEL = {"bins": 500, "dim": 128, "heads": 4, "layers": 4, "hidden": 512, "image_size": 64, "patch_size": 8}

# (axis, sizes, largest slope that counts as linear or better)
AXES: tuple[tuple[str, tuple[int, ...], float], ...] = (
    ("rotations of one image", (256, 1024, 4096, 16_384), 1.1),
    ("bins", (500, 2000, 8000, 32_000), 1.1),
    ("patches", (64, 144, 256, 576), 1.5),
    ("images", (1, 4, 16, 64), 1.1),
)


def work(axis: str, size: int) -> Callable[[], object]:
    shape, rotations, images = dict(MODEL), 64, 1
    if axis == "rotations of one image":
        rotations = size
    elif axis == "bins":
        shape["bins"] = size
        rotations = 256
    elif axis == "patches":
        shape["image_size"] = round(math.sqrt(size)) * shape["patch_size"]
        images, rotations = 8, 1
    else:
        images, rotations = size, 1
    torch.manual_seed(0)
    model = AQuaMaM(ModelConfig(**shape)).eval()  # type: ignore[arg-type]
    pictures, q = torch.rand(images, 3, shape["image_size"], shape["image_size"]), random_quat((rotations, images))
    return lambda: model(pictures).log_prob(q)


def slope(sizes: tuple[int, ...], seconds: list[float]) -> float:
    """Of the last doubling or so, where fixed costs no longer hide it."""
    return math.log(seconds[-1] / seconds[-2]) / math.log(sizes[-1] / sizes[-2])


def figures(rounds: int) -> list[Figure]:
    measured = {}
    with torch.inference_mode():
        for axis, sizes, _ in AXES:
            measured[axis] = [median_seconds(work(axis, size), rounds) for size in sizes]
    draw(measured)
    return [
        at_most(f"growth with {axis}: slope", slope(sizes, measured[axis]), limit, rounds)
        for axis, sizes, limit in AXES
    ]


def draw(measured: dict[str, list[float]]) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, panels = plt.subplots(1, len(AXES), figsize=(13, 3.3), layout="constrained")
    for panel, (axis, sizes, _) in zip(panels, AXES):
        seconds = measured[axis]
        linear = [seconds[-1] * size / sizes[-1] for size in sizes]
        panel.loglog(sizes, linear, color="0.75", linestyle="--", label="linear")
        panel.loglog(sizes, seconds, color="#1f6f8b", marker="o", label=f"measured, slope {slope(sizes, seconds):.2f}")
        panel.set_xticks(sizes, [f"{size:,}" for size in sizes])
        panel.minorticks_off()
        panel.set_xlabel(axis)
        panel.spines[["top", "right"]].set_visible(False)
        panel.legend(frameon=False, fontsize=8)
    panels[0].set_ylabel("seconds, one pass")
    figure.savefig(PICTURE, dpi=110)
    plt.close(figure)
