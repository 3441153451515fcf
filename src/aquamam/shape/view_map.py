"""How many rotations look the same from each side: an object without any symmetry may still hide what tells them apart.

For a view R, the rotations $R h^{-1}$ are tried for turns h that take what the view shows onto the surface, colours included. What the
other view shows besides is compared by rendering both. Rotations that look the same are one answer as long as all between them do too: the
hidden handle of a mug leaves one answer that is an arc, the single five of a die four that are points.
"""

import math
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Int64
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation
from tqdm import tqdm

from aquamam.shape.symmetries import slid
from aquamam.errors import InputError
from aquamam.geometry.grid import so3_grid
from aquamam.shape.group_fit import distinct
from aquamam.shape.visual import compare
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.render import RenderSettings, render
from aquamam.shape.surface import Surface, directions, looking_from, seen
from aquamam.shape.matching import Judge, Tolerance

PIXELS = 64
STARTS, KEPT = 300, 120  # rotations that are pulled into place, and those that are looked at
MANY = 12  # answers are perhaps parts of a curve
LINK = math.radians(60)  # answers farther apart are not asked whether they are one
WIDE = math.radians(5)  # an answer that reaches farther is no point


@dataclass(frozen=True, kw_only=True)
class View:
    """What looks the same from one side."""

    direction: tuple[float, float, float]  # from the object's centre to the camera, in its own frame
    count: int  # separate answers
    continuous: bool  # whether some are more than points
    rotations: Float64[np.ndarray, "n 4"]  # xyzw, examples of all answers, the view's own first


@dataclass(frozen=True, kw_only=True)
class ViewAmbiguity:
    """How many rotations look the same, for directions spread evenly over the sphere."""

    name: str
    views: tuple[View, ...]

    @property
    def directions(self) -> Float64[np.ndarray, "n 3"]:
        return np.array([view.direction for view in self.views])

    @property
    def counts(self) -> Int64[np.ndarray, " n"]:
        return np.array([view.count for view in self.views])

    @property
    def continuous(self) -> Bool[np.ndarray, " n"]:
        return np.array([view.continuous for view in self.views])

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        rows = [
            {"direction": [round(x, 4) for x in view.direction], "count": view.count, "continuous": view.continuous}
            for view in self.views
        ]
        return {"name": self.name, "views": rows}


def view_ambiguity(
    mesh: Mesh | Surface, views: int = 100, *, tolerance: Tolerance | None = None, quiet: bool = True
) -> ViewAmbiguity:
    """The map for a mesh that turns about its origin, as it is rendered, or for a surface about its centre."""
    if views < 1:
        raise InputError(f"a map needs at least one view, got {views}; 100 show single faces of a die.")
    surface = mesh if isinstance(mesh, Surface) else Surface.of(mesh, centre=(0, 0, 0))
    bar = tqdm(directions(views), unit="view", desc="views", disable=True if quiet else None, dynamic_ncols=True)
    return ViewAmbiguity(name=surface.mesh.name, views=tuple(look_from(surface, d, tolerance) for d in bar))


def look_from(surface: Surface, towards: Any, tolerance: Tolerance | None = None) -> View:
    """What looks the same as the object seen from a direction of its own frame."""
    tolerance, towards = tolerance or Tolerance(), np.asarray(towards, float)
    R = looking_from(towards[None])
    judge = Judge(surface, tolerance, part=seen(surface.mesh, R))
    eye = _Eye(surface, R[0], tolerance.pixels)
    identity = Rotation.from_quat([[0.0, 0, 0, 1]])
    turns = Rotation.concatenate([identity, _candidates(judge)])
    turns = turns[[eye.same(h) for h in turns]]
    if len(turns) > MANY:  # perhaps a curve: what lies on it as others lie to one another fills its gaps
        a, b, c = (turns[k] for k in np.random.default_rng(0).integers(len(turns), size=(3, 60)))
        more = a * b.inv() * c
        turns = Rotation.concatenate([turns, more[[eye.same(h) for h in more]]])
    turns = Rotation.concatenate([identity, distinct(turns, math.radians(3))])
    answer = _answers(eye, turns)
    q = turns.as_quat()
    wide = [
        float(np.abs(q[answer == k] @ q[answer == k].T).min()) < math.cos(WIDE / 2) for k in range(answer.max() + 1)
    ]
    x, y, z = (towards / np.linalg.norm(towards)).tolist()
    shown = Rotation.from_matrix(R[0]) * turns.inv()
    return View(direction=(x, y, z), count=len(wide), continuous=any(wide), rotations=shown.as_quat(canonical=True))


def _candidates(judge: Judge) -> Rotation:
    """Turns that take what is seen onto the surface and its paint."""
    grid = Rotation.from_quat(so3_grid(2).numpy())
    start = grid[np.argsort(judge.scores(grid, 100, rough=True), kind="stable")[:STARTS]]
    moved = distinct(judge.pulled(start, count=100, rough=True))
    best = moved[np.argsort(judge.scores(moved, rough=True))[:KEPT]]
    best = distinct(slid(judge, best, rounds=8) if judge.surface.painted else judge.pulled(best))
    return best[[judge.seems_to_hold(h) for h in best]] if len(best) else best


class _Eye:
    """Compares one view with others."""

    def __init__(self, surface: Surface, R: Float64[np.ndarray, "3 3"], pixels: float):
        self.mesh, self.R, self.settings = surface.fitting, R, RenderSettings(size=PIXELS)
        self.image = render(self.mesh, R, self.settings, alpha=True)
        self.limit = max(pixels, 2 / max(1, int((self.image[..., 3] > 0).sum())))

    def same(self, h: Rotation) -> bool:
        other = render(self.mesh, self.R @ h.inv().as_matrix(), self.settings, alpha=True)
        return bool(compare(self.image[None], other[None])[0][0] <= self.limit)


def _answers(eye: _Eye, turns: Rotation) -> Int64[np.ndarray, " n"]:
    """Numbers of the answers that turns belong to: two are one where all turns on the way look the same too; near ones are asked first."""
    q = turns.as_quat()
    angle = 2 * np.arccos(np.abs(q @ q.T).clip(0, 1))
    answer, asked = np.arange(len(q)), np.zeros(angle.shape, int)
    first, second = np.triu_indices(len(q), 1)
    order = np.argsort(angle[first, second], kind="stable")
    for i, j in zip(first[order], second[order]):
        a, b = sorted((answer[i], answer[j]))
        reach = LINK * min(2, (answer == a).sum(), (answer == b).sum())  # what is a curve already may have gaps
        if angle[i, j] > reach or a == b or asked[a, b] == 3:
            continue
        asked[a, b] += 1
        step = (turns[i].inv() * turns[j]).as_rotvec()
        parts = np.linspace(0, 1, 2 + max(1, round(math.degrees(angle[i, j]) / 12)))[1:-1]
        way = sorted(parts, key=lambda t: abs(t - 0.5))  # the middle differs most
        if all(eye.same(turns[i] * Rotation.from_rotvec(t * step)) for t in way):
            answer[answer == b] = a
    return np.unique(answer, return_inverse=True)[1].reshape(-1).astype(np.int64)


def save_map(found: ViewAmbiguity, path: str | os.PathLike[str]) -> None:
    """A Mollweide map of the directions from which an object is seen: the object's z in the middle, y at the top, x on the right."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch

    longitude, latitude = np.meshgrid(np.linspace(-math.pi, math.pi, 721), np.linspace(-math.pi / 2, math.pi / 2, 361))
    flat = np.cos(latitude)
    there = np.stack([flat * np.sin(longitude), np.sin(latitude), flat * np.cos(longitude)], -1)
    nearest = cKDTree(found.directions).query(there)[1]
    label = np.where(found.continuous, 0, found.counts)
    kinds = sorted(set(label.tolist()), key=lambda count: (count == 0, count))
    # one, few, many from light to dark; curves in another hue
    shade = {kind: (0.92 - 0.6 * i / max(1, len(kinds) - 1),) for i, kind in enumerate(kinds)}
    colours = [
        (0.85, 0.45, 0.1) if kind == 0 else (*shade[kind], shade[kind][0] * 0.97, 0.95 - 0.2 * i / len(kinds))
        for i, kind in enumerate(kinds)
    ]
    number = np.vectorize({kind: i for i, kind in enumerate(kinds)}.get)(label)
    figure = Figure(figsize=(8, 4.6), dpi=120)
    FigureCanvasAgg(figure)
    axes: Any = figure.add_axes((0.03, 0.14, 0.94, 0.76), projection="mollweide")
    norm = BoundaryNorm(np.arange(len(kinds) + 1) - 0.5, len(kinds)) if len(kinds) > 1 else None
    axes.pcolormesh(longitude, latitude, number[nearest], cmap=ListedColormap(colours), norm=norm, shading="nearest")
    axes.set(xticklabels=[], yticklabels=[])
    axes.grid(color="white", lw=0.4, alpha=0.6)
    for text, x, y in (
        ("+z", 0, 0),
        ("+x", math.pi / 2, 0),
        ("−x", -math.pi / 2, 0),
        ("+y", 0, 1.35),
        ("−y", 0, -1.35),
    ):
        axes.text(x, y, text, ha="center", va="center", fontsize=9, color="0.2")
    words = ["every turn of a curve" if kind == 0 else f"{kind} rotation{'s' if kind > 1 else ''}" for kind in kinds]
    figure.legend(
        handles=[Patch(color=colour, label=word) for colour, word in zip(colours, words)],
        loc="lower center", ncol=min(5, len(kinds)), frameon=False, fontsize=9,
    )  # fmt: skip
    figure.suptitle(f"{found.name}: how many rotations look the same, by where it is seen from", fontsize=11)
    figure.savefig(path)
