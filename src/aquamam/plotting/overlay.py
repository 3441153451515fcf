"""A photograph with the poses that a model finds in a box of it, the crop, and the ball of its rotations."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int32
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.patheffects import withStroke
from PIL import Image, ImageDraw

from aquamam.geometry.camera import Box, Camera, crop_camera, cut
from aquamam.geometry.rotations import inverse, quat_to_matrix
from aquamam.network.poses import Part
from aquamam.plotting import style
from aquamam.plotting.ball import draw_ball
from aquamam.plotting.cloud import SAMPLE, Cloud
from aquamam.plotting.style import MUTED
from aquamam.posterior.hypotheses import Hypothesis
from aquamam.rendering.known import AXIS_COLOURS
from aquamam.rendering.meshes import Mesh

COLOURS = ("#19e3ff", "#ff4fa3", "#ffd23f", "#8dff5a", "#b79bff", "#ffffff")  # of modes; seen on most photographs
FINE = 4  # samples of a contour's mask a pixel, at most
SIDE = 256  # pixels of the crop as shown
OPENCV = np.diag([1.0, -1.0, -1.0])
Pose = tuple[Float64[np.ndarray, "3 3"], Float64[np.ndarray, "3"]]  # R and t


def overlay(
    image: Image.Image,
    box: Box,
    camera: Camera,
    hypotheses: Sequence[Hypothesis],
    *,
    part: Part,
    cloud: Cloud,
    mesh: Mesh | None = None,
    title: str = "",
) -> Figure:
    """The contour and axes of each hypothesis, best first, in the photograph and in its crop, with their shares.

    cloud: the rotations of the ball. mesh: of the part, about its centre; without one there are axes only.
    """
    shown = [one.to_frame("opengl") for one in hypotheses[: len(COLOURS)]]
    with style.drawing(12.4, 6.6) as figure:
        whole, near = figure.add_axes((0.02, 0.1, 0.6, 0.81)), figure.add_axes((0.64, 0.5, 0.22, 0.41))
        crop, (picture, _) = crop_camera(box, camera), cut(image, box, SIDE, camera)
        focal = SIDE * crop.focal / crop.side
        straight = Camera(fx=focal, fy=focal, cx=SIDE / 2 - 0.5, cy=SIDE / 2 - 0.5)
        sideways = quat_to_matrix(inverse(crop.turn)).numpy()
        views = [(whole, image, camera, np.eye(3), title), (near, picture, straight, sideways, "crop")]
        for axes, pixels, seen, frame, name in views:
            axes.imshow(np.asarray(pixels), extent=(0, pixels.width, pixels.height, 0))
            for k, one in reversed(list(enumerate(shown))):
                pose = frame @ one.matrix, frame @ np.array(one.translation)
                _draw_pose(axes, seen, pose, part, mesh, k, letters=axes is near)
            axes.set(xlim=(0, pixels.width), ylim=(pixels.height, 0), title=name, anchor="NW")
            axes.set_axis_off()
        whole.add_patch(Rectangle(box[:2], *box[2:], fill=False, ec="white", lw=0.8, ls=(0, (3, 3))))
        draw_ball(figure, (0.61, 0.0, 0.37, 0.5), cloud, {k + 1: _nearest(cloud, one) for k, one in enumerate(shown)})
        _draw_list(figure, shown, len(hypotheses) - len(shown), part)
    return figure


def _draw_pose(
    axes: Axes, camera: Camera, pose: Pose, part: Part, mesh: Mesh | None, place: int, *, letters: bool
) -> None:
    """Contour and axes of a pose in our frame; the best one, at place 0, stands out."""
    (R, t), there, first = pose, np.asarray(part.centre), place == 0

    def project(points: np.ndarray) -> np.ndarray:
        return camera.pixels((points @ R.T + t) @ OPENCV)

    dark: Any = [withStroke(linewidth=3.2 if first else 2.4, foreground="#000000aa")]
    if mesh is not None and t[2] + R[2] @ there < -part.radius:  # all of it before the camera
        # meshes are rendered about their centre, with a radius of their own
        corners = project(mesh.vertices * (part.radius / mesh.radius) + there)
        drawn = silhouette(corners, mesh.faces)
        lines = axes.contour(*drawn, [0.5], colors=[COLOURS[place]], linewidths=1.8 if first else 1.2)
        lines.set_path_effects(dark)
    ends = project(np.concatenate([there[None], there + 0.7 * part.radius * np.eye(3)]))
    width, alpha = (2.0, 1.0) if first else (1.0, 0.7)
    for k in np.argsort(R[2]):  # the farthest axis first
        axes.plot(*ends[[0, k + 1]].T, color=AXIS_COLOURS[k], lw=width, alpha=alpha, path_effects=dark)
        if first and letters:
            x, y = ends[0] + 1.15 * (ends[k + 1] - ends[0])
            axes.text(x, y, "xyz"[k], color="white", fontsize=8, ha="center", va="center", path_effects=dark)


def silhouette(
    corners: Float64[np.ndarray, "n 2"], faces: Int32[np.ndarray, "f 3"]
) -> tuple[Float64[np.ndarray, " w"], Float64[np.ndarray, " h"], Bool[np.ndarray, "h w"]]:
    """Where projected triangles cover the plane: samples' x, their y, and a mask with an empty border."""
    low, high = corners.min(0), corners.max(0)
    scale = min(FINE, 800 / max(float((high - low).max()), 1e-6))
    corner = low - 2 / scale
    width, height = (math.ceil(x) + 5 for x in (high - low) * scale)
    mask = Image.new("1", (width, height))
    pen = ImageDraw.Draw(mask)
    for triangle in ((corners - corner) * scale)[faces]:
        pen.polygon(triangle.ravel().tolist(), fill=1, outline=1)
    x, y = (edge + (np.arange(count) + 0.5) / scale for edge, count in zip(corner, (width, height)))
    return x, y, np.array(mask)


def _nearest(cloud: Cloud, one: Hypothesis) -> int:
    """The sample nearest to a hypothesis."""
    samples = np.flatnonzero(cloud.source == SAMPLE)
    return int(samples[np.abs(cloud.q[samples] @ np.array(one.quaternion)).argmax()])


def _draw_list(figure: Figure, shown: Sequence[Hypothesis], more: int, part: Part) -> None:
    """Each mode's colour, number, share and distance."""
    figure.text(0.88, 0.92, "modes", fontsize=9.5, va="top")
    unit, edge = f" {part.unit}" if part.unit else "", withStroke(linewidth=1.5, foreground=MUTED)
    for k, one in enumerate(shown):
        y = 0.85 - 0.062 * k
        spread = math.sqrt(max(one.covariance[2, 2], 0.0))
        far = f"{-one.translation[2]:.4g} ± {spread:.2g}{unit}"
        figure.text(0.88, y, "■", color=COLOURS[k], fontsize=14, va="center", path_effects=[edge])
        figure.text(0.9, y + 0.012, f"{k + 1}: {100 * one.score:.0f} %", fontsize=10, weight="bold", va="center")
        figure.text(0.9, y - 0.016, far, fontsize=8, color=MUTED, va="center")
    if more:
        figure.text(0.88, 0.85 - 0.062 * len(COLOURS), f"and {more} more", fontsize=8, color=MUTED)
    told = "contour and axes of each mode (x red, y green, z blue), its share, and its distance along the optical axis"
    figure.text(0.02, 0.055, told, fontsize=8, color=MUTED)
