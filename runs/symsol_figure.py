"""The eight solids of the bundled symsol and their posteriors: python runs/symsol_figure.py OUT.png [CHECKPOINT]"""

import math
import sys
from typing import Any

import torch
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from PIL import Image

import aquamam
from aquamam.geometry.rotations import rotvec_to_quat
from aquamam.plotting.mollweide import TILT_COLOURS, directions
from aquamam.plotting.style import FAINT, INK, MUTED, drawing, save
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid

VIEWS = {
    "tet": (0.4, 0.3, 0.2), "cube": (0.5, 0.6, 0.2), "icosa": (0.3, -0.4, 0.1), "cone": (-0.9, 0.0, 0.4),
    "cyl": (0.9, 0.0, 0.5), "tetX": (0.2, -0.6, 0.3), "cylO": (0.7, 0.2, -0.4), "sphereX": (0.2, 0.3, 0.4),
}  # fmt: skip
ROUND = ("cone", "cyl")  # their x axis goes round
SAMPLES = 600


def main(out: str, checkpoint: str = "symsol") -> None:
    model = aquamam.load(checkpoint)
    with drawing(12.8, 5.2) as figure:
        draw(figure, model)
    save(figure, out)


def draw(figure: Figure, model: Any) -> None:
    wheel = LinearSegmentedColormap.from_list("tilt", TILT_COLOURS)
    for k, (name, view) in enumerate(VIEWS.items()):
        truth = rotvec_to_quat(torch.tensor(view, dtype=torch.float64))
        image = render(solid(name).mesh, truth.numpy(), RenderSettings(size=224))
        with torch.inference_mode():
            posterior = model(Image.fromarray(image))
            drawn = posterior.sample((SAMPLES,), generator=torch.Generator().manual_seed(0))[:, 0].double()
        left, bottom = (k % 4) / 4, 0.5 - k // 4 * 0.5
        picture = figure.add_axes((left + 0.004, bottom + 0.32, 0.075, 0.17))
        picture.imshow(image)
        picture.set_axis_off()
        figure.text(left + 0.08, bottom + 0.46, name, color=INK, fontsize=12, weight="bold", va="top")
        axes: Any = figure.add_axes((left + 0.012, bottom + 0.02, 0.226, 0.36), projection="mollweide")
        axes.grid(color=MUTED, lw=0.5, alpha=0.3)
        axes.set(xticklabels=[], yticklabels=[])
        axes.spines["geo"].set_color(MUTED)
        axis = "x" if name in ROUND else "z"
        longitude, latitude, tilt = directions(solid(name).symmetry.equivalents(truth).numpy(), axis)
        if name in ROUND:
            axes.scatter(longitude, latitude, s=14, color=FAINT, zorder=2)
        else:
            rings = {"s": 60, "facecolors": "none", "lw": 0.8, "zorder": 2}
            axes.scatter(longitude, latitude, edgecolors=wheel(tilt / (2 * math.pi) % 1), **rings)
        longitude, latitude, tilt = directions(drawn.numpy(), axis)
        axes.scatter(longitude, latitude, c=wheel(tilt / (2 * math.pi) % 1), s=5, alpha=0.7, linewidths=0, zorder=3)


if __name__ == "__main__":
    main(*sys.argv[1:])
