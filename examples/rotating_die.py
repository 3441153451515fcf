"""Rotate a die in front of the camera: no frame alone tells its rotation, all of them together do.

    python examples/rotating_die.py                 prints a table, writes out/rotating_die.png
    python examples/rotating_die.py sheet.png       writes there

The first frame shows nothing but the five, which four rotations do. The rotation between frames is known.
"""

import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.figure import Figure

import aquamam
from aquamam.geometry.rotations import geodesic_angle, multiply, quat_to_rotvec, rotvec_to_quat
from aquamam.plotting import known_object, save
from aquamam.plotting.style import FAINT, INK, MUTED, PAPER
from aquamam.posterior.modes import cluster
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid

TURNS = (0, 6, 90, 180, 270)  # degrees about the vertical axis: each frame shows one face and nothing else
START = (0.0, 0.0, 0.0, 1.0)  # xyzw: the five faces the camera


@dataclass(frozen=True, kw_only=True)
class Step:
    """What is known after a frame: from that frame alone, and from all so far."""

    image: np.ndarray
    alone: np.ndarray  # samples as rotation vectors of the first frame's pose
    fused: np.ndarray
    entropy: tuple[float, float]  # nats; alone and fused
    modes: tuple[int, int]
    error_deg: float  # from the fused mode to the truth
    statement: str


def rotating_die(
    model: Any, turns: tuple[int, ...] = TURNS, *, draws: int = 250, samples: int = 1024, seed: int = 0
) -> list[Step]:
    """The posteriors of a die that turns about the vertical, frame by frame; all are of the first frame's pose."""
    generator = torch.Generator().manual_seed(seed)
    known = known_object(model)
    mesh, settings = (known.mesh, known.settings) if known else (solid("die").mesh, RenderSettings(size=64))
    angles = torch.tensor(turns, dtype=torch.float64).deg2rad()
    relative = rotvec_to_quat(angles[:, None] * torch.tensor([0.0, 1.0, 0.0], dtype=torch.float64))  # R_i = D_i R_0
    truth = torch.tensor(START, dtype=torch.float64)
    images = render(mesh, multiply(relative, truth), settings)
    pictures = torch.from_numpy(images).permute(0, 3, 1, 2)
    steps = []
    for i in range(len(turns)):
        with torch.no_grad():
            alone = aquamam.fuse(model(pictures[i : i + 1]), relative[i : i + 1], samples=draws, generator=generator)
            fused = aquamam.fuse(model(pictures[: i + 1]), relative[: i + 1], samples=samples, generator=generator)
            drawn = [p.sample((draws,), generator=generator)[:, 0] for p in (alone, fused)]
        steps.append(
            Step(
                image=images[i],
                alone=quat_to_rotvec(drawn[0]).numpy(),
                fused=quat_to_rotvec(drawn[1]).numpy(),
                entropy=(float(alone.entropy().value), float(fused.entropy().value)),
                modes=(len(cluster(drawn[0]).modes), len(cluster(drawn[1]).modes)),
                error_deg=math.degrees(float(geodesic_angle(fused.mode[0].double(), truth))),
                statement=fused.statements()[0],
            )
        )
    return steps


# --- the picture ------------------------------------------------------------------------------------------------------

TILT, SWING = math.radians(22), math.radians(-32)  # from where the ball is seen
ACROSS = np.array([math.cos(SWING), 0.0, math.sin(SWING)])
UP = np.array([math.sin(SWING) * math.sin(TILT), math.cos(TILT), -math.cos(SWING) * math.sin(TILT)])


def flat(v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Rotation vectors on the page."""
    return v @ ACROSS, v @ UP


def draw_ball(axes: Any, points: np.ndarray, colour: str) -> None:
    """All rotations are a ball of radius 180 degrees: axis times angle; opposite points of its surface are one."""
    axes.set_aspect("equal")
    axes.set_axis_off()
    axes.set(xlim=(-3.65, 3.65), ylim=(-3.65, 3.65))
    t = np.linspace(0, 2 * math.pi, 121)
    axes.fill(math.pi * np.cos(t), math.pi * np.sin(t), color=FAINT, alpha=0.35, lw=0)
    axes.plot(math.pi * np.cos(t), math.pi * np.sin(t), color=MUTED, lw=0.8)
    circle = math.pi * np.stack([np.cos(t), 0 * t, np.sin(t)], -1)
    axes.plot(*flat(circle), color=MUTED, lw=0.5, alpha=0.5)
    for letter, axis in zip("xyz", math.pi * np.eye(3)):
        axes.plot(*flat(np.stack([-axis, axis])), color=MUTED, lw=0.5, alpha=0.6)
        (x,), (y,) = flat(1.14 * axis[None])
        axes.text(x, y, letter, color=MUTED, fontsize=8, ha="center", va="center")
    axes.scatter(*flat(points), s=16, color=colour, alpha=0.28, linewidths=0, zorder=3)
    axes.scatter([0], [0], s=130, facecolors="none", edgecolors=INK, lw=1.0, zorder=4)  # START is no rotation


def picture(steps: list[Step], turns: tuple[int, ...] = TURNS) -> Any:
    """A column for each frame: what the camera sees, what it tells alone, and what all frames so far tell."""
    left, column, height = 1.2, 2.05, 6.7  # inches
    width = left + column * len(steps) + 0.1
    figure = Figure(figsize=(width, height), facecolor=PAPER)
    title = "A rotating die: no frame alone tells its rotation, all of them do"
    figure.text(0.2 / width, 0.955, title, color=INK, fontsize=14, weight="bold")
    words = (
        "Dots are samples, as rotation vectors (axis times angle) of the first frame's pose; the ring is the truth. "
        "Entropy in nats: less is surer."
    )
    figure.text(0.2 / width, 0.92, words, color=MUTED, fontsize=9)
    rows = (("camera", 0.665, 0.215), ("this frame\nalone", 0.365, 0.28), ("all frames\nso far", 0.04, 0.28))
    for name, bottom, tall in rows:
        figure.text(0.2 / width, bottom + tall / 2, name, color=INK, fontsize=10.5, va="center", weight="bold")
    for i, (step, degrees) in enumerate(zip(steps, turns)):
        place, size = (left + column * i) / width, column / width
        _, bottom, tall = rows[0]
        axes = figure.add_axes((place, bottom, size, tall))
        edge = len(step.image) // 8  # of the white around the die
        axes.imshow(step.image[edge:-edge, edge:-edge], interpolation="bilinear")
        axes.set_axis_off()
        axes.set_title(f"rotated by {degrees}°", color=MUTED, fontsize=9.5, pad=3)
        for (_, bottom, tall), points, k, colour in zip(
            rows[1:], (step.alone, step.fused), (0, 1), ("#3f66ad", "#c4193b")
        ):
            draw_ball(figure.add_axes((place, bottom, size, tall)), points, colour)
            modes = "1 mode" if step.modes[k] == 1 else f"{step.modes[k]} modes"
            said = f"{modes}, {step.entropy[k]:.1f} nats".replace("-", "\N{MINUS SIGN}")
            figure.text(place + size / 2, bottom - 0.012, said, color=INK, fontsize=9.5, ha="center")
    return figure


def main(out: str = "out/rotating_die.png") -> None:
    steps = rotating_die(aquamam.load("die-plain"))
    print("rotated  alone: entropy  modes   fused: entropy  modes   error   what the fused posterior says of itself")
    for degrees, step in zip(TURNS, steps):
        (a, b), (m, n) = step.entropy, step.modes
        print(f"{degrees:5d}°  {a:14.2f} {m:6d}  {b:15.2f} {n:6d}  {step.error_deg:5.1f}°   {step.statement}")
    print(save(picture(steps), Path(out)))


if __name__ == "__main__":
    main(*sys.argv[1:])
