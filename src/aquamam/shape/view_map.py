"""How many rotations look the same from each side: an object without any symmetry may still hide what tells them apart.

For a view R, the rotations $R h^{-1}$ are tried for h that take what the view shows onto the surface, colours included.
What the other view shows besides is compared by rendering both. Rotations that look the same are one answer as long as
all between them do too: the hidden handle of a mug leaves one answer that is an arc, the single five of a die four.
"""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Int64
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from scipy.spatial import cKDTree
from scipy.spatial.transform import Rotation
from tqdm import tqdm

from aquamam.errors import require
from aquamam.geometry.grid import so3_grid
from aquamam.rendering.meshes import Mesh
from aquamam.shape.group_fit import distinct
from aquamam.shape.matching import Matcher, RenderComparison, Tolerance
from aquamam.shape.surface import Surface, directions, looking_from, seen
from aquamam.shape.symmetries import refined_by_paint

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

    def to_dict(self) -> dict[str, Any]:
        rounded = [round(x, 4) for x in self.direction]
        return {"direction": rounded, "count": self.count, "continuous": self.continuous}


@dataclass(frozen=True, kw_only=True)
class ViewAmbiguity:
    """How many rotations look the same, for directions spread evenly over the sphere."""

    name: str
    views: tuple[View, ...]

    @property
    def directions(self) -> Float64[np.ndarray, "n 3"]:
        return np.array([view.direction for view in self.views])


def view_ambiguity(mesh: Mesh | Surface, views: int = 100, *, quiet: bool = True) -> ViewAmbiguity:
    """The map for a mesh that turns about its origin, as it is rendered, or for a surface about its centre."""
    require(views > 0, f"a map needs at least one view, got {views}; 100 show single faces of a die.")
    surface = mesh if isinstance(mesh, Surface) else Surface.of(mesh, centre=(0, 0, 0))
    bar = tqdm(directions(views), unit="view", desc="views", disable=True if quiet else None, dynamic_ncols=True)
    return ViewAmbiguity(name=surface.mesh.name, views=tuple(look_from(surface, d) for d in bar))


def look_from(surface: Surface, towards: Any) -> View:
    """What looks the same as the object seen from a direction of its own frame."""
    tolerance, towards = Tolerance(), np.asarray(towards, float)
    R = looking_from(towards[None])
    matcher = Matcher(surface, tolerance, part=seen(surface.mesh, R))
    renders = RenderComparison(surface.fitting, R, PIXELS)
    limit = max(tolerance.pixels, 2 / max(1, int((renders.images[..., 3] > 0).sum())))

    def same(h: Rotation) -> bool:
        return renders.difference(h.inv()).share <= limit

    identity = Rotation.from_quat([[0.0, 0, 0, 1]])
    found = Rotation.concatenate([identity, _candidates(matcher)])
    found = found[[same(h) for h in found]]
    if len(found) > MANY:  # perhaps a curve: what lies on it as others lie to one another fills its gaps
        a, b, c = (found[k] for k in np.random.default_rng(0).integers(len(found), size=(3, 60)))
        more = a * b.inv() * c
        found = Rotation.concatenate([found, more[[same(h) for h in more]]])
    found = Rotation.concatenate([identity, distinct(found, math.radians(3))])
    answer, q = _answers(same, found), found.as_quat()
    own = [q[answer == k] for k in range(answer.max() + 1)]
    wide = [float(np.abs(one @ one.T).min()) < math.cos(WIDE / 2) for one in own]
    x, y, z = (towards / np.linalg.norm(towards)).tolist()
    shown = Rotation.from_matrix(R[0]) * found.inv()
    return View(direction=(x, y, z), count=len(wide), continuous=any(wide), rotations=shown.as_quat(canonical=True))


def _candidates(matcher: Matcher) -> Rotation:
    """Rotations that take what is seen onto the surface and its paint."""
    grid = Rotation.from_quat(so3_grid(2).numpy())
    start = grid[np.argsort(matcher.scores(grid, 100, rough=True), kind="stable")[:STARTS]]
    moved = distinct(matcher.refined(start, count=100, rough=True))
    best = moved[np.argsort(matcher.scores(moved, rough=True))[:KEPT]]
    best = distinct(refined_by_paint(matcher, best, rounds=8) if matcher.surface.painted else matcher.refined(best))
    return best[[matcher.seems_to_hold(h) for h in best]] if len(best) else best


def _answers(same: Callable[[Rotation], bool], found: Rotation) -> Int64[np.ndarray, " n"]:
    """Numbers of the answers that rotations belong to: two are one where all on the way look the same, too."""
    q = found.as_quat()
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
        step = (found[i].inv() * found[j]).as_rotvec()
        parts = np.linspace(0, 1, 2 + max(1, round(math.degrees(angle[i, j]) / 12)))[1:-1]
        way = sorted(parts, key=lambda t: abs(t - 0.5))  # the middle differs most
        if all(same(found[i] * Rotation.from_rotvec(t * step)) for t in way):
            answer[answer == b] = a
    return np.unique(answer, return_inverse=True)[1].reshape(-1).astype(np.int64)


def save_map(found: ViewAmbiguity, path: str | os.PathLike[str]) -> None:
    """A Mollweide map of the directions from which an object is seen: its z in the middle, y at the top, x right."""
    longitude, latitude = np.meshgrid(np.linspace(-math.pi, math.pi, 721), np.linspace(-math.pi / 2, math.pi / 2, 361))
    flat = np.cos(latitude)
    there = np.stack([flat * np.sin(longitude), np.sin(latitude), flat * np.cos(longitude)], -1)
    label = [0 if view.continuous else view.count for view in found.views]
    kinds = sorted(set(label), key=lambda count: (count == 0, count))
    # one, few, many from light to dark; curves in another hue
    shades = np.linspace(0.92, 0.32, len(kinds)).tolist()
    colours = [(s, 0.97 * s, 0.65 + 0.3 * s) if kind else (0.85, 0.45, 0.1) for kind, s in zip(kinds, shades)]
    nearest = cKDTree(found.directions).query(there)[1]
    painted = np.array([colours[kinds.index(kind)] for kind in label])[nearest]
    figure = Figure(figsize=(8, 4.6), dpi=120)
    axes: Any = figure.add_axes((0.03, 0.14, 0.94, 0.76), projection="mollweide")
    axes.pcolormesh(longitude, latitude, painted, shading="nearest")
    axes.set(xticklabels=[], yticklabels=[])
    axes.grid(color="white", lw=0.4, alpha=0.6)
    right, top = math.pi / 2, 1.35
    for text, x, y in (("+z", 0, 0), ("+x", right, 0), ("−x", -right, 0), ("+y", 0, top), ("−y", 0, -top)):
        axes.text(x, y, text, ha="center", va="center", fontsize=9, color="0.2")
    words = ["every turn of a curve" if kind == 0 else f"{kind} rotation{'s' if kind > 1 else ''}" for kind in kinds]
    patches = [Patch(color=colour, label=word) for colour, word in zip(colours, words)]
    figure.legend(handles=patches, loc="lower center", ncol=min(5, len(kinds)), frameon=False, fontsize=9)
    figure.suptitle(f"{found.name}: how many rotations look the same, by where it is seen from", fontsize=11)
    figure.savefig(path)
