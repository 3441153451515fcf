"""Symmetries of objects: R and R g look the same for every g of the object's group.

Groups act on the object's side, in its own frame, and so know nothing about cameras.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from aquamam.errors import InputError, require
from aquamam.geometry.rotations import (
    IDENTITY,
    as_rotation_matrix,
    as_unit_quat,
    geodesic_angle,
    inverse,
    matrix_to_quat,
    multiply,
    quat_to_matrix,
    quat_to_rotvec,
    rotate,
    rotvec_to_quat,
)

MAX_ORDER = 360  # of the discrete elements
MEASURED = math.radians(2)  # how far off a measured symmetry may be: that of Linemod's glue is one of 178.5 degrees
SAME = math.radians(0.2)  # closer elements are one: files round, and 360 rotations about one axis are a degree apart
ORIGIN = torch.zeros(3, dtype=torch.float64)
Vector = Sequence[float | int] | np.ndarray | Tensor  # three numbers


@dataclass(frozen=True, kw_only=True, eq=False)
class SymmetryGroup:
    """Discrete elements (xyzw, the identity first) and perhaps a continuous axis: every angle about it looks the same.

    With an axis the elements stand for whole cosets: the identity alone (a cone), or it and a flip (a cylinder).
    """

    elements: Float64[Tensor, "g 4"]
    axis: Float64[Tensor, "3"] | None = None
    offset: Float64[Tensor, "3"] = ORIGIN  # a point that the symmetries fix, in the mesh's units

    def __post_init__(self) -> None:
        elements = as_unit_quat(self.elements, "elements")
        axis = None if self.axis is None else _vector(self.axis, "axis", unit=True)
        if axis is not None:  # the identity, and one flip of the axis if there is any
            along = rotate(elements, axis) @ axis
            kept = bool((along.abs() >= math.cos(SAME)).all())
            rule = "symmetries beside a continuous axis must keep or reverse it"
            require(kept, f"{rule}, got one that tilts it, which makes a sphere.")
            elements = torch.cat((IDENTITY[None], elements[along < 0][:1]))
        others = geodesic_angle(elements, IDENTITY) > SAME
        there = not bool(others.all())
        require(there, "a symmetry group must contain the identity, got none; add the quaternion [0, 0, 0, 1].")
        distinct = int(_matches(elements, elements).sum(-1).amax()) == 1
        require(distinct, "elements of a symmetry group must differ, got the same rotation twice; drop one.")
        elements = torch.cat((IDENTITY[None], elements[others]))
        # a finite closed set has its inverses
        closed = axis is not None or all(_matches(multiply(elements, q), elements).any(-1).all() for q in elements)
        came = f"got {len(elements)} that lack some; SymmetryGroup.generated completes them"
        require(closed, f"a symmetry group must hold the products of its elements, {came}.")
        object.__setattr__(self, "elements", elements)
        object.__setattr__(self, "axis", axis)

    @property
    def order(self) -> int | float:
        return math.inf if self.axis is not None else len(self.elements)

    def equivalents(self, q: Float[Tensor, "*batch 4"], count: int = 360) -> Float[Tensor, "*batch e 4"]:
        """Every rotation that looks like q (xyzw), q itself first; of an axis `count` evenly spaced angles."""
        group = self.elements
        if self.axis is not None:
            group = multiply(group[:, None], _about(self.axis, count)).flatten(0, 1)
        return multiply(q.unsqueeze(-2), group.to(q))

    def element(self, u: Float[Tensor, "*batch 2"]) -> Float64[Tensor, "*batch 4"]:
        """A uniformly random element (xyzw) from two uniform numbers in [0, 1): one picks the coset, one the angle."""
        u = u.double()
        g = self.elements.to(u.device)[(u[..., 0] * len(self.elements)).long()]
        if self.axis is not None:
            g = multiply(g, rotvec_to_quat(2 * math.pi * u[..., 1:] * self.axis.to(u.device)))
        return g

    def distance(self, q1: Float[Tensor, "*#batch 4"], q2: Float[Tensor, "*#batch 4"]) -> Float[Tensor, "..."]:
        r"""Smallest geodesic angle from $q_1 g$ to $q_2$ (xyzw) over the whole group, in radians."""
        return self._left_over(q1, q2)[1].amin(-1)

    def nearest(self, q: Float[Tensor, "*#batch 4"], reference: Float[Tensor, "*#batch 4"]) -> Float[Tensor, "... 4"]:
        """Of the rotations that look like q the one nearest to the reference (xyzw)."""
        left, angle = self._left_over(q, reference)
        best = angle.argmin(-1)
        g = self.elements.to(left)[best]
        if self.axis is not None:
            h, axis = left.take_along_dim(best[..., None, None], -2).squeeze(-2), self.axis.to(left)
            g = multiply(g, rotvec_to_quat(2 * torch.atan2(h[..., :3] @ axis, h[..., 3]).unsqueeze(-1) * axis))
        return multiply(q, g)

    def _left_over(self, q1: Tensor, q2: Tensor) -> tuple[Tensor, Tensor]:
        """What remains from $q_1 g$ to $q_2$ for every discrete element g, $h = g^{-1} q_1^{-1} q_2 = (v, w)$, and its
        angle: with an axis a the best rotation about it leaves $2 atan2(|v - (v·a) a|, |(v·a, w)|)$."""
        between = multiply(inverse(q1), q2).unsqueeze(-2)
        h = multiply(inverse(self.elements).to(between), between)
        v, w = h[..., :3], h[..., 3:]
        if self.axis is not None:
            axis = self.axis.to(h)
            along = (v @ axis).unsqueeze(-1)
            v, w = v - along * axis, torch.cat((along, w), -1)
        return h, 2 * torch.atan2(torch.linalg.vector_norm(v, dim=-1), torch.linalg.vector_norm(w, dim=-1))

    def conjugated(self, q: Float[Tensor, "4"]) -> "SymmetryGroup":
        """The group of the same object in a frame rotated by q (xyzw): x_new = q x_old, and so g_new = q g q^-1."""
        q = as_unit_quat(q)
        elements = multiply(multiply(q, self.elements), inverse(q))
        axis = None if self.axis is None else rotate(q, self.axis)
        return SymmetryGroup(elements=elements, axis=axis, offset=rotate(q, self.offset))

    def to_dict(self) -> dict[str, Any]:
        data = {"elements": self.elements.tolist(), "axis": None if self.axis is None else self.axis.tolist()}
        return {**data, "offset": self.offset.tolist()} if self.offset.any() else data

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "SymmetryGroup":
        good = isinstance(data, Mapping) and "elements" in data
        require(good, f'a symmetry must be a dictionary with "elements" and perhaps "axis", got {data!r:.60}.')
        axis = None if data.get("axis") is None else _vector(data["axis"], "axis")
        offset = _vector(data.get("offset", ORIGIN), "offset")
        return cls(elements=as_unit_quat(data["elements"], "elements"), axis=axis, offset=offset)

    def to_bop(self, offset: Vector | None = None) -> dict[str, Any]:
        """The symmetry entries of an object in BOP's models_info.json, about the group's offset or another one."""
        point = self.offset if offset is None else _vector(offset, "offset")
        motions = torch.eye(4, dtype=torch.float64).repeat(len(self.elements) - 1, 1, 1)
        motions[:, :3, :3] = R = quat_to_matrix(self.elements[1:])
        motions[:, :3, 3] = point - R @ point
        entry: dict[str, Any] = {"symmetries_discrete": motions.flatten(1).tolist()} if len(motions) else {}
        if self.axis is not None:
            entry["symmetries_continuous"] = [{"axis": self.axis.tolist(), "offset": point.tolist()}]
        return entry

    @classmethod
    def from_bop(cls, info: Mapping[str, Any]) -> "SymmetryGroup":
        """The group that an entry in BOP's models_info.json generates, about the point that its motions fix."""
        try:
            lines = info.get("symmetries_continuous", [])
            axes = [_vector(line["axis"], "axis", unit=True) for line in lines]
            points = [_vector(line.get("offset", ORIGIN), "offset") for line in lines]
            motions = torch.tensor(info.get("symmetries_discrete", []), dtype=torch.float64).reshape(-1, 4, 4)
        except (AttributeError, KeyError, TypeError, ValueError, RuntimeError) as error:
            rule = "BOP symmetries must be 4 x 4 matrices of 16 numbers and continuous ones {axis, offset}"
            raise InputError(f"{rule}, got {info!r:.80}; check models_info.json.") from error
        axis = axes[0] if axes else None
        one = all(float(torch.linalg.cross(axes[0], other).norm()) <= SAME for other in axes)
        require(one, "an object can have one continuous axis, got several that differ, which make it a sphere.")
        R = as_rotation_matrix(motions[:, :3, :3], "symmetries_discrete")
        # the fixed point nearest to the axis's own point: (1 - R) x = t, and x on the axis
        eye, start = torch.eye(3, dtype=torch.float64), points[0] if points else ORIGIN
        across = 0 * eye if axis is None else eye - torch.outer(axis, axis)
        A = torch.cat((across[None], eye - R)).flatten(0, 1)
        t = torch.cat((across @ start, motions[:, :3, 3].flatten()))
        offset = start + torch.linalg.pinv(A, rtol=1e-6) @ (t - A @ start)
        q = matrix_to_quat(R)
        return cls.generated(_of_finite_order(q) if len(q) == 1 else q, axis=axis, offset=offset)

    @classmethod
    def generated(
        cls, generators: Float[Tensor, "n 4"], axis: Vector | None = None, offset: Float64[Tensor, "3"] = ORIGIN
    ) -> "SymmetryGroup":
        """The smallest group that contains these rotations (xyzw) and every rotation about the axis."""
        steps = as_unit_quat(generators, "generators")
        if axis is not None:
            return cls(elements=torch.cat((IDENTITY[None], steps)), axis=_vector(axis, "axis"), offset=offset)
        elements, start = IDENTITY[None], 0
        while start < len(elements):  # multiply the newest elements until nothing new appears
            products = multiply(elements[start:, None], steps).flatten(0, 1)
            start = len(elements)
            new = products[~_matches(products, elements).any(-1)]
            while len(new):
                elements = torch.cat((elements, new[:1]))
                new = new[~_matches(new, new[:1]).any(-1)]
                rule = f"symmetries must generate at most {MAX_ORDER} rotations"
                require(len(elements) <= MAX_ORDER, f"{rule}, got more; write those about a line as a continuous axis.")
        return cls(elements=elements, offset=offset)

    @classmethod
    def trivial(cls) -> "SymmetryGroup":
        return cls(elements=IDENTITY[None])

    @classmethod
    def cyclic(cls, n: int, axis: Vector = (0.0, 0.0, 1.0)) -> "SymmetryGroup":
        """The n rotations by multiples of 360 / n degrees about an axis."""
        require(1 <= n <= MAX_ORDER, f"n must be from 1 to {MAX_ORDER}, got {n}; see revolution for a continuous axis.")
        return cls(elements=_about(axis, n))

    @classmethod
    def dihedral(cls, n: int, axis: Vector = (0.0, 0.0, 1.0), secondary: Vector = (1.0, 0.0, 0.0)) -> "SymmetryGroup":
        """The 2n rotations of an n-sided prism: cyclic(n, axis), and by 180 degrees about n lines, one `secondary`."""
        most = MAX_ORDER // 2
        require(1 <= n <= most, f"n must be from 1 to {most}, got {n}; see revolution for a continuous axis.")
        cosine = float(_vector(axis, "axis", unit=True) @ _vector(secondary, "secondary", unit=True))
        require(abs(cosine) <= SAME, f"secondary must be perpendicular to axis, got cosine {cosine:.3g}.")
        elements = _about(axis, n)
        return cls(elements=torch.cat((elements, multiply(elements, _about(secondary, 2)[1]))))

    @classmethod
    def tetrahedral(cls) -> "SymmetryGroup":
        """The 12 rotations of a tetrahedron with vertices (1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1)."""
        return cls.generated(torch.stack((_about((0, 0, 1), 2)[1], _about((1, 1, 1), 3)[1])))

    @classmethod
    def octahedral(cls) -> "SymmetryGroup":
        """The 24 rotations of a cube or octahedron along the axes."""
        return cls.generated(torch.stack((_about((0, 0, 1), 4)[1], _about((1, 1, 1), 3)[1])))

    @classmethod
    def icosahedral(cls) -> "SymmetryGroup":
        """The 60 rotations of an icosahedron with vertices at cyclic permutations of (0, ±1, ±(1 + sqrt 5) / 2)."""
        return cls.generated(torch.stack((_about((0, 1, (1 + math.sqrt(5)) / 2), 5)[1], _about((1, 1, 1), 3)[1])))

    @classmethod
    def revolution(cls, axis: Vector = (0.0, 0.0, 1.0), flip: bool = False) -> "SymmetryGroup":
        """Every rotation about an axis (a cone), and with `flip` the half turns that reverse it too (a cylinder)."""
        line = _vector(axis, "axis", unit=True)
        across = torch.linalg.cross(line, torch.eye(3, dtype=torch.float64)[line.abs().argmin()])
        return cls(elements=_about(across, 2) if flip else IDENTITY[None], axis=line)


def _about(axis: Vector, n: int) -> Float64[Tensor, "n 4"]:
    """The rotations by multiples of 360 / n degrees about an axis, xyzw."""
    angles = torch.arange(n, dtype=torch.float64) * (2 * math.pi / n)
    return rotvec_to_quat(angles[:, None] * _vector(axis, "axis", unit=True))


def _vector(vector: Any, name: str, *, unit: bool = False) -> Float64[Tensor, "3"]:
    try:
        v = torch.as_tensor(vector, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be three numbers, got {vector!r:.60}; for example [0, 0, 1].") from error
    good = v.shape == (3,) and bool(torch.isfinite(v).all()) and not (unit and float(v.norm()) < 1e-6)
    require(good, f"{name} must be three finite numbers, not all zero, got {v.tolist()!r:.60}; for example [0, 0, 1].")
    return v / v.norm() if unit else v


def _of_finite_order(q: Float64[Tensor, "n 4"]) -> Float64[Tensor, "n 4"]:
    """Rotations by nearly a half, a third, ... a twelfth of a full one, or multiples, made exactly that."""
    vector = quat_to_rotvec(q)
    angle = exact = vector.norm(dim=-1)
    for n in range(12, 1, -1):
        near = (angle * n / math.tau).round() * math.tau / n
        exact = torch.where((near - angle).abs() < MEASURED, near, exact)
    return rotvec_to_quat(vector * (exact / angle.clamp_min(1e-12))[:, None])


def _matches(p: Tensor, q: Tensor) -> Bool[Tensor, "p q"]:
    """Which of the rotations p (rows) and q (columns) are the same."""
    return (p @ q.mT).abs() > math.cos(SAME / 2)
