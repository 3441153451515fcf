r"""Pure maps on rotations.

Quaternions are `xyzw`, unit, of either sign; returned ones are canonical, $q_w \geq 0$. `multiply(p, q)` rotates by q
first, like a product of matrices. All functions take any leading batch shape, keep dtype and device, and are
differentiable.
"""

import math
from itertools import pairwise
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor

from aquamam.errors import InputError, require

LOG_UNIFORM = -2 * math.log(math.pi)  # the half 3-sphere has volume pi**2
UNIT_TOLERANCE = 1e-3  # float32 and four printed decimals pass, an unnormalised network output does not
_SHIFTS = {"pi2": 0.0, "1": -LOG_UNIFORM, "8pi2": -math.log(8)}  # of log densities, by the volume of all rotations

IDENTITY = torch.tensor([0, 0, 0, 1], dtype=torch.float64)

Number = TypeVar("Number", float, np.ndarray, Tensor)
Generator = torch.Generator | None  # None is torch's own


def canonical(q: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 4"]:
    """The sign with q_w >= 0, or at q_w = 0 with the first of x, y, z that is not zero positive; zeros are +0."""
    x, y, z, w = q.unbind(-1)
    lead = torch.where(w != 0, w, torch.where(x != 0, x, torch.where(y != 0, y, z)))
    return torch.where((lead < 0).unsqueeze(-1), -q, q) + 0.0  # -0.0 + 0.0 is +0.0


def as_unit_quat(q: Any, name: str = "q") -> Float64[Tensor, "*batch 4"]:
    """A user's xyzw quaternions (tensor, array or nested list), checked, normalised in float64 and made canonical."""
    tensor = _finite(q, name)
    if tensor.shape[-1:] != (4,):
        raise InputError(f"{name} must hold xyzw quaternions on a last axis of 4, got shape {tuple(tensor.shape)}.")
    norm = torch.linalg.vector_norm(tensor, dim=-1, keepdim=True)
    if tensor.numel() and float((norm - 1).abs().max()) > UNIT_TOLERANCE:
        worst = float(norm.flatten()[(norm - 1).abs().argmax()])
        hint = "a zero quaternion is no rotation" if worst == 0 else "divide it by its norm"
        raise InputError(f"{name} must have unit norm to within {UNIT_TOLERANCE:g}, got norm {worst:.6g}; {hint}.")
    return canonical(tensor / norm)


def as_rotation_matrix(R: Any, name: str = "R", tolerance: float = 2 * UNIT_TOLERANCE) -> Float64[Tensor, "*batch 3 3"]:
    """A user's rotation matrices (tensor, array or nested list), checked, then the nearest rotations in float64."""
    tensor = _finite(R, name)
    shape = tuple(tensor.shape)
    require(shape[-2:] == (3, 3), f"{name} must hold matrices on last axes 3 x 3, got shape {shape}; reshape it.")
    if tensor.numel() == 0:
        return tensor
    error = float((tensor.mT @ tensor - torch.eye(3).to(tensor)).abs().max())
    came = f"got an error of {error:.3g} in R^T R = 1; divide out the scale"
    require(error <= tolerance, f"{name} must be orthogonal to within {tolerance:g}, {came}.")
    proper = float(torch.linalg.det(tensor).min()) > 0
    require(proper, f"{name} must have determinant +1, got -1, a reflection; flip the sign of one axis.")
    u, _, vh = torch.linalg.svd(tensor)
    return u @ vh


def _finite(value: Any, name: str) -> Tensor:
    """A user's array of finite floating-point numbers in float64."""
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise InputError(f"{name} must be an array of numbers, got {type(value).__name__}; pass a tensor.") from error
    # Lists such as [0, 0, 0, 1] are integers only by spelling; integer tensors are more often labels or pixels.
    if isinstance(value, (list, tuple)) and not tensor.is_complex() and tensor.dtype != torch.bool:
        tensor = torch.as_tensor(value, dtype=torch.float64)
    if not tensor.is_floating_point():
        raise InputError(f"{name} must be floating point, got {tensor.dtype}; convert it with .double().")
    if not torch.isfinite(tensor).all():
        raise InputError(f"{name} must be finite, got NaN or infinity; drop or mask these rows.")
    return tensor.double()


def convert_log_density(log_p: Number, to: str) -> Number:
    """Our log density restated for another volume of all rotations: "pi2" (ours), "1" or "8pi2"."""
    if to not in _SHIFTS:
        raise InputError(f"measure must be one of {', '.join(_SHIFTS)}, got {to!r}; ours is pi2.")
    return log_p + _SHIFTS[to]


def multiply(p: Float[Tensor, "*#batch 4"], q: Float[Tensor, "*#batch 4"]) -> Float[Tensor, "... 4"]:
    """The rotation q followed by p, the Hamilton product pq of xyzw quaternions, canonical."""
    dtype = torch.promote_types(p.dtype, q.dtype)  # a cross product takes no two
    u, v = torch.broadcast_tensors(p[..., :3].to(dtype), q[..., :3].to(dtype))
    a, b = p[..., 3:], q[..., 3:]
    xyz = a * v + b * u + torch.linalg.cross(u, v, dim=-1)
    return canonical(torch.cat((xyz, a * b - (u * v).sum(-1, keepdim=True)), -1))


def inverse(q: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 4"]:
    """The inverse of unit xyzw quaternions, their conjugate."""
    return canonical(torch.cat((-q[..., :3], q[..., 3:]), -1))


def rotate(q: Float[Tensor, "*#batch 4"], v: Float[Tensor, "*#batch 3"]) -> Float[Tensor, "... 3"]:
    """Vectors rotated by unit xyzw quaternions, $v + 2 q_w (u × v) + 2 u × (u × v)$ with u = q_xyz."""
    u, w = torch.broadcast_tensors(q[..., :3], v)[0], q[..., 3:]
    v = torch.broadcast_to(v, u.shape)
    t = 2 * torch.linalg.cross(u, v, dim=-1)
    return v + w * t + torch.linalg.cross(u, t, dim=-1)


def geodesic_angle(q1: Float[Tensor, "*#batch 4"], q2: Float[Tensor, "*#batch 4"]) -> Float[Tensor, "..."]:
    """Angle in [0, pi] between two rotations given as xyzw quaternions, $2 atan2(|v|, |w|)$ of $q_1^{-1} q_2$.

    Accurate near 0 and near pi, where arccos is not; its gradients are finite everywhere (zero at q1 = q2).
    """
    r = multiply(inverse(q1), q2)
    return 2 * torch.atan2(torch.linalg.vector_norm(r[..., :3], dim=-1), r[..., 3])


def slerp(
    q0: Float[Tensor, "*#batch 4"], q1: Float[Tensor, "*#batch 4"], t: float | Float[Tensor, "*#batch"]
) -> Float[Tensor, "... 4"]:
    """The shortest path from q0 (t = 0) to q1 (t = 1) at constant speed, $q_0 (q_0^{-1} q_1)^t$, xyzw."""
    step = quat_to_rotvec(multiply(inverse(q0), q1))
    t = torch.as_tensor(t, dtype=step.dtype, device=step.device)
    return multiply(q0, rotvec_to_quat(step * t.unsqueeze(-1)))


def chordal_mean(
    q: Float[Tensor, "*batch n 4"], weights: Float[Tensor, "*batch n"] | None = None
) -> Float[Tensor, "*batch 4"]:
    """The mean of n xyzw quaternions regardless of their signs: the main eigenvector of $sum_n w_n q_n q_n^T$."""
    some = q.shape[-2] > 0
    require(some, "a mean needs at least one rotation, got none; check the axis of length n before the last.")
    weighted = q if weights is None else q * weights.unsqueeze(-1)
    scatter = (weighted.mT @ q).double()
    return canonical(torch.linalg.eigh(scatter)[1][..., -1].to(q.dtype))


def quat_to_matrix(q: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3 3"]:
    """Rotation matrices of unit xyzw quaternions."""
    x, y, z, w = q.unbind(-1)
    entries = (
        *(1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)),
        *(2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)),
        *(2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)),
    )
    return torch.stack(entries, -1).unflatten(-1, (3, 3))


def matrix_to_quat(R: Float[Tensor, "*batch 3 3"]) -> Float[Tensor, "*batch 4"]:
    """Canonical xyzw quaternions of rotation matrices; see `as_rotation_matrix` for matrices that may not be rotations.

    R holds every product $4 q_i q_j$; the row of the largest $q_i$ is q up to scale, and never degenerates.
    """
    a, b, c, d, e, f, g, h, i = R.flatten(-2).unbind(-1)
    products = (
        *(1 + a - e - i, b + d, c + g, h - f),
        *(b + d, 1 - a + e - i, f + h, c - g),
        *(c + g, f + h, 1 - a - e + i, d - b),
        *(h - f, c - g, d - b, 1 + a + e + i),
    )
    outer = torch.stack(products, -1).unflatten(-1, (4, 4))
    largest = outer.diagonal(dim1=-2, dim2=-1).argmax(-1)
    row = outer.gather(-2, largest[..., None, None].expand(*largest.shape, 1, 4)).squeeze(-2)
    return canonical(row / torch.linalg.vector_norm(row, dim=-1, keepdim=True))


def rotvec_to_quat(r: Float[Tensor, "*batch 3"]) -> Float[Tensor, "*batch 4"]:
    """Canonical xyzw quaternions of rotation vectors (axis times angle in radians, of any length)."""
    angle = torch.linalg.vector_norm(r, dim=-1, keepdim=True)
    return canonical(torch.cat((r * torch.sinc(angle / (2 * math.pi)) / 2, torch.cos(angle / 2)), -1))


def quat_to_rotvec(q: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 3"]:
    """Rotation vectors of length in [0, pi] of unit xyzw quaternions."""
    q = canonical(q)
    v, w = q[..., :3], q[..., 3:]
    sine = torch.linalg.vector_norm(v, dim=-1, keepdim=True)
    some = torch.where(sine > 0, sine, 1.0)  # so that no gradient is 0 * inf
    return v * torch.where(sine > 0, 2 * torch.atan2(some, w) / some, 2.0)


def _axes(convention: str) -> tuple[list[int], bool]:
    """Indices of the axes, and whether they are intrinsic."""
    axes = ["xyz".find(letter) for letter in convention.lower()]
    one_case = convention.isupper() or convention.islower()
    if not one_case or len(axes) > 3 or -1 in axes or any(i == j for i, j in pairwise(axes)):
        rule = "up to three letters of one case, neighbours different"
        raise InputError(f'an Euler convention is {rule}, got {convention!r}; "YXZ" is intrinsic and "xyz" extrinsic.')
    return axes, convention.isupper()


def euler_to_quat(
    angles: Float[Tensor, "*batch n"], convention: str, degrees: bool = False
) -> Float[Tensor, "*batch 4"]:
    """Canonical xyzw quaternions of Euler angles in SciPy's notation: upper case intrinsic, lower case extrinsic."""
    axes, intrinsic = _axes(convention)
    count = angles.shape[-1]
    require(count == len(axes), f"{convention!r} needs {len(axes)} angles on the last axis, got {count}.")
    half = angles * (math.pi / 360 if degrees else 0.5)
    q = IDENTITY.to(angles).expand(*angles.shape[:-1], 4)
    for axis, h in zip(axes, half.unbind(-1)):
        parts = [torch.zeros_like(h)] * 3 + [torch.cos(h)]
        parts[axis] = torch.sin(h)
        step = torch.stack(parts, -1)
        q = multiply(q, step) if intrinsic else multiply(step, q)
    return q


def quat_to_euler(q: Float[Tensor, "*batch 4"], convention: str) -> Float[Tensor, "*batch 3"]:
    r"""Euler angles (radians) about three different axes of unit xyzw quaternions in SciPy's notation.

    For intrinsic axes i, j, k and $i × j = ε k$, rotating on by 90 degrees about j leaves
    $q = (c_b \cos s, c_b \sin s, s_b \cos d, ε s_b \sin d)$ along 1, i, j, k, with s and d half the sum and difference
    of the outer angles. The middle angle is in [-pi/2, pi/2]; in gimbal lock the outer ones share what is known.
    """
    axes, intrinsic = _axes(convention)
    require(sorted(axes) == [0, 1, 2], f"the convention of angles must name three different axes, got {convention!r}.")
    i, j, k = axes if intrinsic else axes[::-1]
    parity = 1.0 if (j - i) % 3 == 1 else -1.0
    quarter = q.new_zeros(4)
    quarter[[j, 3]] = math.sqrt(0.5)
    q = multiply(q, quarter)
    outer, inner = torch.hypot(q[..., j], q[..., k]), torch.hypot(q[..., i], q[..., 3])
    total, difference = torch.atan2(q[..., i], q[..., 3]), torch.atan2(parity * q[..., k], q[..., j])
    first, middle, last = total + difference, 2 * torch.atan2(outer, inner) - math.pi / 2, parity * (difference - total)
    angles = torch.stack((first, middle, last) if intrinsic else (last, middle, first), -1)
    return angles - 2 * math.pi * torch.round(angles / (2 * math.pi))


def from_wxyz(q: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 4"]:
    """Canonical xyzw quaternions of wxyz ones."""
    return canonical(q.roll(-1, -1))


def opencv_to_opengl(q: Float[Tensor, "*batch 4"]) -> Float[Tensor, "*batch 4"]:
    """Object-to-camera rotations (xyzw) from OpenCV's camera to ours, or back.

    OpenCV's y points down and its z away from the viewer, ours (OpenGL) up and towards: R_gl = diag(1, -1, -1) R_cv.
    """
    return multiply(q.new_tensor([1, 0, 0, 0]), q)


def random_quat(
    shape: tuple[int, ...] = (),
    *,
    generator: Generator = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str | None = None,
) -> Float[Tensor, "*shape 4"]:
    """Canonical xyzw quaternions uniform on SO(3), drawn in float64: a seed gives the same in every dtype."""
    source = generator.device if generator is not None else "cpu"
    q = torch.randn(*shape, 4, generator=generator, dtype=torch.float64, device=source)
    return canonical((q / torch.linalg.vector_norm(q, dim=-1, keepdim=True)).to(dtype).to(device or source))


def inverse_cdf(p: Float[Tensor, "*batch classes"], u: Float[Tensor, "*batch draws"]) -> Int64[Tensor, "*batch draws"]:
    """The class at which the sum of p, normalised or not, passes the share u in [0, 1); none of probability zero."""
    cumulative = p.double().cumsum(-1)
    total = cumulative[..., -1:]
    target = torch.minimum(u * total, torch.nextafter(total, torch.zeros_like(total)))  # u * total may round to total
    return torch.searchsorted(cumulative, target.contiguous(), right=True)
