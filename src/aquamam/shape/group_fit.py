"""The finite groups of rotations, fitted to rotations that were found one by one.

There are no others than those of a pyramid (C), of a prism (D) and of the regular solids (T, O, I). What a search finds
is inexact and may lack some elements; the group that it nearly is, placed where it fits best, is exact and whole.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Float64
from scipy.spatial.transform import Rotation

from aquamam.geometry.symmetry import MAX_ORDER, SymmetryGroup

EVERY = np.array([0.11, 0.35, 0.74, 1.0, 1.37, 1.93, 2.31, 2.89, 3.3, 4.1, 4.77, 5.6])  # stand for every angle
APART = math.radians(1.0)  # found rotations and axes nearer than this are one
LEAN = math.radians(4.0)  # how far angles between found axes may be from a group's
PHI = (1 + 5**0.5) / 2
SOLIDS = {  # name: its group and order, the order of an axis, two such axes at an acute angle
    "I": (SymmetryGroup.icosahedral, 60, 5, np.array([0.0, 1, PHI]), np.array([0.0, -1, PHI])),
    "O": (SymmetryGroup.octahedral, 24, 4, np.array([0.0, 0, 1]), np.array([1.0, 0, 0])),
    "T": (SymmetryGroup.tetrahedral, 12, 3, np.array([1.0, 1, 1]), np.array([1.0, 1, -1])),
}


@dataclass(frozen=True, kw_only=True)
class NamedGroup:
    """A group and its name: none, C2, ..., D2, ..., T, O, I, revolution, revolution with flip, sphere (no `group`)."""

    name: str
    group: SymmetryGroup | None

    @property
    def axis(self) -> Float64[np.ndarray, "3"] | None:
        return None if self.group is None or self.group.axis is None else self.group.axis.numpy()

    @cached_property
    def samples(self) -> Rotation:
        """All elements but the identity; of continuous ones, those at the angles `EVERY` for each coset."""
        if self.group is None:
            return Rotation.from_quat(np.random.default_rng(0).normal(size=(len(EVERY), 4)))
        elements = Rotation.from_quat(self.group.elements.numpy())
        if self.axis is None:
            return elements[1:]
        free = about(self.axis, EVERY)
        return Rotation.concatenate([g * free for g in elements])

    @cached_property
    def families(self) -> dict[str, Rotation]:
        """The samples by axis, under their names."""
        if self.group is None:
            return {"every rotation, as of a sphere": self.samples}
        if self.axis is not None:
            cosets = np.split(np.arange(len(self.samples)), len(self.group.elements))
            names = (f"every turn about {arrow(self.axis)}", f"half turns across {arrow(self.axis)}")
            return {name: self.samples[coset] for name, coset in zip(names, cosets)}
        families = {}
        for axis, order in lines_of(self.samples):
            words = "half turn" if order == 2 else f"turns by {360 / order:.4g}°"
            families[f"{words} about {arrow(axis)}"] = about(axis, np.arange(1, order) * (2 * math.pi / order))
        return families

    @property
    def words(self) -> list[str]:
        """The families, those of one kind together."""
        kinds: dict[str, list[str]] = {}
        for family in self.families:
            what, _, axis = family.replace("half turn about", "half turns about").partition(" about ")
            kinds.setdefault(what, []).append(axis)
        lines = []
        for what, axes in kinds.items():
            named = ", ".join(axes) if len(axes) <= 3 else f"{len(axes)} axes, one of them {axes[0]}"
            lines.append(f"{what} about {named}" if named else what)
        return lines


def arrow(axis: Float64[np.ndarray, "3"]) -> str:
    """An axis to print, its first coordinate that is not zero made positive."""
    lead = axis[np.argmax(np.abs(axis) > 1e-3)]
    return "(" + ", ".join(f"{x + 0.0:.3f}" for x in np.round(axis * np.sign(lead), 3)) + ")"


def about(axis: Float64[np.ndarray, "3"], angles: Float64[np.ndarray, " n"]) -> Rotation:
    """Rotations about an axis by angles in radians."""
    return Rotation.from_rotvec(np.outer(angles, axis / np.linalg.norm(axis)))


def across(axis: Float64[np.ndarray, "3"], angles: Float64[np.ndarray, " n"]) -> Float64[np.ndarray, "n 3"]:
    """Unit vectors perpendicular to an axis, at these angles from one of them."""
    axis = axis / np.linalg.norm(axis)
    first = np.cross(axis, np.eye(3)[np.abs(axis).argmin()])
    first /= np.linalg.norm(first)
    return np.cos(angles)[:, None] * first + np.sin(angles)[:, None] * np.cross(axis, first)


NONE = NamedGroup(name="none", group=SymmetryGroup.trivial())
SPHERE = NamedGroup(name="sphere", group=None)


def revolution(axis: Float64[np.ndarray, "3"], flip: bool) -> NamedGroup:
    """Every rotation about an axis, and with `flip` the half turns across it."""
    name = "revolution with flip" if flip else "revolution"
    return NamedGroup(name=name, group=SymmetryGroup.revolution(axis, flip=flip))


# --- found rotations --------------------------------------------------------------------------------------------------


class Line(NamedTuple):
    """An axis, and the number of equally spaced rotations about it that were found, the identity among them."""

    axis: Float64[np.ndarray, "3"]
    order: int


def distinct(found: Rotation, apart: float = APART) -> Rotation:
    """Of rotations that are nearly the same the first; the identity is left out."""
    q = found.as_quat().reshape(-1, 4)
    kept = [np.array([0.0, 0, 0, 1])]
    for row in q:
        if np.abs(np.array(kept) @ row).max() < math.cos(apart / 2):
            kept.append(row)
    return Rotation.from_quat(np.array(kept[1:]).reshape(-1, 4))


def lines_of(found: Rotation) -> list[Line]:
    """The axes of rotations, those of highest order first."""
    vectors = found.as_rotvec().reshape(-1, 3)
    angles = np.linalg.norm(vectors, axis=-1)
    vectors, angles = vectors[angles > APART], angles[angles > APART]
    axes, lines = vectors / angles[:, None], []
    while len(axes):
        cosine = axes @ axes[0]
        one, side = np.abs(cosine) > math.cos(APART), np.sign(cosine)
        order, axis = _order(np.append(0.0, (side * angles)[one])), (side[:, None] * axes)[one].sum(0)
        lines.append(Line(axis / np.linalg.norm(axis), order))
        axes, angles = axes[~one], angles[~one]
    return sorted((line for line in lines if line.order > 1), key=lambda line: -line.order)


def _order(angles: Float64[np.ndarray, " n"]) -> int:
    """The largest n for which all multiples of 360/n degrees are among the angles."""
    for n in range(min(len(angles), MAX_ORDER), 1, -1):
        gap = np.arange(n)[:, None] * (2 * math.pi / n) - angles
        gap -= 2 * math.pi * np.round(gap / (2 * math.pi))
        if np.abs(gap).min(1).max() < APART:
            return n
    return 1


# --- the group that they are ------------------------------------------------------------------------------------------


def fit_group(found: Rotation, holds: Callable[[Rotation], bool]) -> NamedGroup:
    """The largest group near to these rotations, all of whose elements `holds` confirms."""
    found = distinct(found)
    candidates = sorted(_candidates(lines_of(found)), key=lambda c: -c.order)
    for candidate in candidates:
        placed = candidate.placed(found)
        if holds(Rotation.from_quat(placed.elements[1:].numpy())):
            return NamedGroup(name=candidate.name, group=placed)
    return NONE


class _Candidate(NamedTuple):
    name: str
    order: int
    base: Callable[[], SymmetryGroup]
    own: tuple[Float64[np.ndarray, "3"], ...]  # axes of the base
    seen: tuple[Float64[np.ndarray, "3"], ...]  # where they were found

    def placed(self, found: Rotation) -> SymmetryGroup:
        """The group where its axes were found, then moved so that all its elements fit."""
        base = self.base()
        place = Rotation.align_vectors(np.array(self.seen), np.array(self.own))[0]
        mine = Rotation.from_quat(base.elements[1:].numpy())
        for _ in range(3):
            here = place * mine * place.inv()
            cosine = np.abs(here.as_quat() @ found.as_quat().T)
            near = cosine.max(1) > math.cos(2 * LEAN / 2)
            if not near.any() or len(self.seen) < 2:
                break
            target = found[cosine.argmax(1)[near]].as_rotvec()
            now = here[near].as_rotvec()
            target *= np.where((target * now).sum(-1, keepdims=True) < 0, -1.0, 1.0)  # half turns have two
            place = Rotation.align_vectors(target, now)[0] * place
        return base.conjugated(torch.from_numpy(place.as_quat()))


def _candidates(lines: list[Line]) -> Iterator[_Candidate]:
    """Groups that have some of these axes, with more elements than were found perhaps."""
    for name, (make, size, order, a, b) in SOLIDS.items():
        axes, angle = [line.axis for line in lines if line.order % order == 0], math.acos(a @ b / (a @ a))
        pairs = [(one, other if one @ other >= 0 else -other) for one, other in combinations(axes, 2)]
        near = [seen for seen in pairs if abs(math.acos(min(1.0, seen[0] @ seen[1])) - angle) < LEAN]
        for seen in near[:4]:
            yield _Candidate(name, size, make, (a, b), seen)
    z, x = np.array([0.0, 0, 1]), np.array([1.0, 0, 0])
    for line in lines[:40]:
        for n in (n for n in range(2, line.order + 1) if line.order % n == 0):
            yield _Candidate(f"C{n}", n, partial(SymmetryGroup.cyclic, n), (z,), (line.axis,))
            halves = [o.axis for o in lines if o.order % 2 == 0 and abs(o.axis @ line.axis) < math.sin(LEAN)]
            for half in halves if n < line.order else halves[:1]:
                if 2 * n <= MAX_ORDER:
                    yield _Candidate(f"D{n}", 2 * n, partial(SymmetryGroup.dihedral, n), (z, x), (line.axis, half))
