"""Laws of rotations, against SciPy and roma."""

import itertools
import math

import numpy as np
import pytest
import roma
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from aquamam.data import random as positions
from aquamam.geometry import rotations as rot

CONVENTIONS = ["".join(p) for p in itertools.permutations("xyz")]
CONVENTIONS += [c.upper() for c in CONVENTIONS]
BOTH_DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
TOLERANCE = {torch.float32: 2e-6, torch.float64: 1e-14}
IDENTITY = torch.tensor([0.0, 0, 0, 1], dtype=torch.float64)


def haar(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return rot.random_quat(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def special() -> torch.Tensor:
    """Rotations where formulas break: the identity, half turns, and steps of every size away from them."""
    axes = torch.cat((torch.eye(3), -torch.eye(3), torch.ones(1, 3), haar(4)[:, :3])).double()
    axes = axes / axes.norm(dim=-1, keepdim=True)
    steps = torch.tensor([0.0, 1e-300, 1e-160, 1e-12, 1e-8, 1e-4, 9.99e-4, 1e-3, 1.001e-3, 2e-3, 0.1]).double()
    angles = torch.cat((steps, math.pi - steps, torch.tensor([0.5, 1.0, 2.0]).double()))
    return rot.rotvec_to_quat((axes[:, None] * angles[:, None]).reshape(-1, 3))


def same(p: torch.Tensor, q: torch.Tensor, tolerance: float = 1e-14) -> bool:
    """Equal as rotations: q and -q are one."""
    return bool((torch.minimum((p - q).norm(dim=-1), (p + q).norm(dim=-1)) <= tolerance).all())


unit_quats = st.lists(st.floats(-1, 1), min_size=4, max_size=4).filter(lambda v: math.hypot(*v) > 1e-3)
laws = settings(max_examples=60, deadline=None)


def as_quat(values: list[float]) -> torch.Tensor:
    q = torch.tensor(values, dtype=torch.float64)
    return q / q.norm()


@laws
@given(unit_quats)
def test_canonical_ignores_the_sign_bit_by_bit(values):
    q = as_quat(values)
    c = rot.canonical(q)
    assert torch.equal(c, rot.canonical(-q))
    assert torch.equal(c, rot.canonical(c))
    assert not torch.signbit(c[3])
    assert torch.equal(c.abs(), q.abs())


@pytest.mark.parametrize(
    ("q", "expected"),
    [
        ([0.0, 0.0, -1.0, -0.0], [0.0, 0.0, 1.0, 0.0]),
        ([0.0, -0.6, 0.8, 0.0], [0.0, 0.6, -0.8, 0.0]),
        ([-0.0, -0.0, -0.0, 1.0], [0.0, 0.0, 0.0, 1.0]),
        ([1.0, 0.0, 0.0, -5e-324], [-1.0, 0.0, 0.0, 5e-324]),
    ],
)
def test_canonical_at_half_turns_makes_the_first_nonzero_positive_and_has_no_negative_zero(q, expected):
    c, expected = rot.canonical(torch.tensor(q, dtype=torch.float64)), torch.tensor(expected, dtype=torch.float64)
    assert torch.equal(c, expected)
    assert torch.equal(torch.signbit(c), torch.signbit(expected))


def test_rounded_rotations_are_accepted_and_made_exact():
    q = haar(100, dtype=torch.float32)
    checked = rot.as_unit_quat(-q)
    assert checked.dtype == torch.float64
    assert (checked.norm(dim=-1) - 1).abs().max() < 1e-15
    assert (checked - q).abs().max() < 1e-7
    assert torch.equal(rot.as_unit_quat([0, 0, 0, -1]), IDENTITY)
    assert (rot.as_unit_quat(np.round(q.numpy(), 4)) - q).abs().max() < 2e-4
    R = rot.quat_to_matrix(haar(50))
    checked = rot.as_rotation_matrix(R.float())
    assert (checked - R).abs().max() < 1e-6
    assert (checked.mT @ checked - torch.eye(3)).abs().max() < 1e-14
    assert rot.as_unit_quat(np.zeros((0, 4))).shape == (0, 4)
    assert rot.as_rotation_matrix(torch.zeros(0, 3, 3)).shape == (0, 3, 3)


def test_the_uniform_density_is_known_in_all_three_measures():
    assert abs(rot.LOG_UNIFORM + 2.28946) < 1e-5
    assert rot.convert_log_density(rot.LOG_UNIFORM, to="1") == pytest.approx(0, abs=1e-15)
    assert rot.convert_log_density(rot.LOG_UNIFORM, to="8pi2") == pytest.approx(-math.log(8 * math.pi**2))
    assert rot.convert_log_density(rot.LOG_UNIFORM, to="pi2") == rot.LOG_UNIFORM


@laws
@given(unit_quats, unit_quats, unit_quats)
def test_quaternions_are_a_group_and_act_like_their_matrices(a, b, c):
    p, q, r = as_quat(a), as_quat(b), as_quat(c)
    assert same(rot.multiply(rot.multiply(p, q), r), rot.multiply(p, rot.multiply(q, r)))
    assert same(rot.multiply(p, rot.inverse(p)), IDENTITY)
    assert same(rot.multiply(IDENTITY, p), p)
    matrix = rot.quat_to_matrix(p) @ rot.quat_to_matrix(q)
    assert torch.allclose(rot.quat_to_matrix(rot.multiply(p, q)), matrix, atol=1e-14)
    v = torch.tensor([0.3, -2.0, 5.0]).double()
    assert torch.allclose(rot.rotate(p, v), rot.quat_to_matrix(p) @ v, atol=1e-13)
    assert torch.allclose(rot.rotate(-p, v), rot.rotate(p, v), atol=0)


@BOTH_DTYPES
def test_geodesic_angle_is_accurate_near_zero_and_near_a_half_turn(dtype):
    base = haar(64)
    axes = torch.nn.functional.normalize(haar(64, seed=1)[:, :3], dim=-1)
    for step in (0.0, 1e-7, 1e-5, 1e-3, 0.1):
        for angle in (step, math.pi - step):
            other = rot.multiply(base, rot.rotvec_to_quat(axes * angle))
            measured = rot.geodesic_angle(base.to(dtype), other.to(dtype)).double()
            assert (measured - angle).abs().max() < (1e-6 if dtype == torch.float32 else 2e-15)


def test_geodesic_angle_is_a_bi_invariant_metric_that_scipy_and_roma_agree_with():
    a, b, c = haar(200), haar(200, seed=1), haar(200, seed=2)
    angle = rot.geodesic_angle(a, b)
    assert np.allclose(angle, (Rotation.from_quat(a).inv() * Rotation.from_quat(b)).magnitude(), atol=1e-14)
    assert torch.allclose(angle, roma.unitquat_geodesic_distance(a, b), atol=1e-7)
    assert torch.equal(angle, rot.geodesic_angle(-a, b))
    assert torch.allclose(angle, rot.geodesic_angle(b, a), atol=1e-15)
    assert torch.allclose(angle, rot.geodesic_angle(rot.multiply(c, a), rot.multiply(c, b)), atol=1e-14)
    assert torch.allclose(angle, rot.geodesic_angle(rot.multiply(a, c), rot.multiply(b, c)), atol=1e-14)
    assert (angle <= rot.geodesic_angle(a, c) + rot.geodesic_angle(c, b) + 1e-14).all()


def test_slerp_moves_at_constant_speed_along_the_shortest_path():
    p, q = haar(50), haar(50, seed=1)
    whole = rot.geodesic_angle(p, q)
    for t in (0.0, 0.25, 1.0):
        point = rot.slerp(p, -q, t)
        assert torch.allclose(rot.geodesic_angle(p, point), t * whole, atol=1e-13)
        assert torch.allclose(rot.geodesic_angle(point, q), (1 - t) * whole, atol=1e-13)
    steps = torch.linspace(0, 1, 7).double()[:, None]
    assert same(rot.slerp(p, q, steps)[3], rot.slerp(p, q, 0.5))


def test_chordal_mean_agrees_with_scipy_and_ignores_signs():
    q, weights = haar(4, 30), torch.rand(4, 30, generator=torch.Generator().manual_seed(3)).double()
    signs = torch.where(torch.arange(30) % 2 == 0, 1.0, -1.0).double()[:, None]
    for w in (None, weights):
        mean = rot.chordal_mean(q * signs, w)
        expected = [Rotation.from_quat(q[b]).mean(None if w is None else w[b]).as_quat() for b in range(4)]
        assert same(mean, torch.tensor(np.array(expected)), 1e-10)


@BOTH_DTYPES
def test_conversions_return_where_they_started_even_near_identity_and_half_turns(dtype):
    q = torch.cat((haar(500), special())).to(dtype)
    assert same(rot.matrix_to_quat(rot.quat_to_matrix(q)), q, 4 * TOLERANCE[dtype])
    assert same(rot.rotvec_to_quat(rot.quat_to_rotvec(q)), q, TOLERANCE[dtype])
    assert same(rot.opencv_to_opengl(rot.opencv_to_opengl(q)), q, 0)


def test_conversions_agree_with_scipy_and_roma():
    q = torch.cat((haar(500), special()))
    theirs = Rotation.from_quat(q.numpy())
    assert np.allclose(rot.quat_to_matrix(q), theirs.as_matrix(), atol=1e-14)
    assert torch.allclose(rot.quat_to_matrix(q), roma.unitquat_to_rotmat(q), atol=1e-14)
    assert same(rot.matrix_to_quat(torch.tensor(theirs.as_matrix())), q, 1e-14)
    assert same(rot.from_wxyz(torch.tensor(theirs.as_quat(scalar_first=True))), q, 1e-15)
    away = q[:, 3] > 1e-3  # at half turns the rotation vector's sign is free
    assert np.allclose(rot.quat_to_rotvec(q)[away], theirs.as_rotvec()[away.numpy()], atol=1e-14)
    assert torch.allclose(rot.quat_to_rotvec(q)[away], roma.unitquat_to_rotvec(q)[away], atol=1e-12)
    long = torch.linspace(-30, 30, 61).double()[:, None] * torch.tensor([0.48, 0.64, 0.6]).double()
    assert same(rot.rotvec_to_quat(long), torch.tensor(Rotation.from_rotvec(long.numpy()).as_quat()))


def test_rotation_vectors_keep_relative_accuracy_near_zero():
    r = torch.logspace(-150, -1, 400, dtype=torch.float64)[:, None] * torch.tensor([0.48, -0.64, 0.6]).double()
    assert ((rot.quat_to_rotvec(rot.rotvec_to_quat(r)) / r) - 1).abs().max() < 1e-13


@pytest.mark.parametrize("convention", CONVENTIONS)
def test_euler_angles_follow_scipys_notation(convention):
    q = haar(100)
    angles = rot.quat_to_euler(q, convention)
    assert np.allclose(angles, Rotation.from_quat(q.numpy()).as_euler(convention), atol=1e-10)
    assert torch.allclose(rot.quat_to_euler(-q, convention), angles, atol=1e-12)
    assert same(rot.euler_to_quat(angles, convention), q)
    assert same(rot.euler_to_quat(torch.rad2deg(angles), convention, degrees=True), q)


@pytest.mark.parametrize("convention", CONVENTIONS)
@BOTH_DTYPES
def test_gimbal_lock_loses_no_rotation(convention, dtype):
    angles = torch.tensor(
        [[a, b, c] for a in (0.0, 0.3, -2.0) for b in (-math.pi / 2, math.pi / 2) for c in (0.0, 1.1)]
    )
    q = rot.euler_to_quat(angles.double(), convention)
    near = torch.cat((q, rot.multiply(q, rot.rotvec_to_quat(1e-7 * torch.ones(1, 3).double())))).to(dtype)
    assert same(rot.euler_to_quat(rot.quat_to_euler(near, convention), convention), near, TOLERANCE[dtype])


def test_euler_conventions_may_have_one_or_two_letters():
    angles = torch.tensor([0.3, -1.0]).double()
    assert np.allclose(rot.euler_to_quat(angles, "ZX"), Rotation.from_euler("ZX", angles.numpy()).as_quat())
    assert np.allclose(rot.euler_to_quat(angles[:1], "y"), Rotation.from_euler("y", 0.3).as_quat())


def test_camera_conversion_moves_every_point_to_the_flipped_camera_axes():
    q, points = torch.cat((haar(20), special()[:20])), torch.randn(40, 3).double()
    seen = rot.rotate(rot.opencv_to_opengl(q), points)
    assert torch.allclose(seen, rot.rotate(q, points) * torch.tensor([1.0, -1.0, -1.0]).double(), atol=1e-14)


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 0, 3), (2, 3)])
@BOTH_DTYPES
def test_every_function_takes_any_batch_shape_and_keeps_the_dtype(shape, dtype):
    q = haar(*shape, dtype=dtype)
    unary = (rot.canonical, rot.inverse, rot.from_wxyz, rot.opencv_to_opengl)
    quaternions = [q, *(function(q) for function in unary), rot.multiply(q, q), rot.slerp(q, q, 0.5)]
    quaternions += [rot.matrix_to_quat(rot.quat_to_matrix(q)), rot.rotvec_to_quat(rot.quat_to_rotvec(q))]
    quaternions += [rot.euler_to_quat(rot.quat_to_euler(q, "YXZ"), "YXZ"), rot.chordal_mean(torch.stack((q, q), -2))]
    vectors = [rot.rotate(q, q[..., :3]), rot.quat_to_rotvec(q), rot.quat_to_euler(q, "zxy")]
    results = {(4,): quaternions, (3,): vectors, (3, 3): [rot.quat_to_matrix(q)], (): [rot.geodesic_angle(q, q)]}
    for event, tensors in results.items():
        for tensor in tensors:
            assert tensor.shape == shape + event
            assert tensor.dtype == dtype


@BOTH_DTYPES
def test_gradients_are_finite_at_the_identity_at_half_turns_and_at_equality(dtype):
    q = special().to(dtype).requires_grad_()
    other = q.detach().flip(0)
    unary = (rot.quat_to_rotvec, rot.quat_to_matrix, rot.canonical, lambda q: rot.matrix_to_quat(rot.quat_to_matrix(q)))
    outputs = [function(q) for function in unary]
    outputs += [rot.geodesic_angle(q, q.detach()), rot.geodesic_angle(q, other), rot.slerp(q, other, 0.3)]
    outputs += [rot.rotvec_to_quat(q[:, :3]), rot.rotvec_to_quat(0 * q[:, :3]), rot.multiply(q, other)]
    for output in outputs:
        (gradient,) = torch.autograd.grad(output.sum(), q)
        assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("size", [0.0, 1e-9, 5e-4, 9.9e-4, 1.01e-3, 0.3, 3.0])
def test_gradients_of_the_exponential_and_logarithm_are_right_from_zero_to_a_half_turn(size):
    r = (size * torch.tensor([0.48, -0.64, 0.6]).double()).requires_grad_()
    assert torch.autograd.gradcheck(rot.rotvec_to_quat, (r,))
    # d log(exp(r)) / dr is the identity, at zero too
    jacobian = torch.autograd.functional.jacobian(lambda r: rot.quat_to_rotvec(rot.rotvec_to_quat(r)), r)
    assert torch.allclose(jacobian, torch.eye(3).double(), atol=1e-12)


@pytest.mark.parametrize("by_position", [False, True])
def test_random_rotations_are_haar_uniform_canonical_and_reproducible(by_position):
    q = torch.from_numpy(positions.haar(0, "train", np.arange(200_000))) if by_position else haar(200_000)
    assert torch.equal(q, rot.canonical(q))
    angle = rot.geodesic_angle(q, IDENTITY).sort().values
    uniform = (angle - angle.sin()) / math.pi  # the Haar distribution of the angle
    assert (uniform - (torch.arange(len(q)) + 0.5) / len(q)).abs().max() < 1.95 / math.sqrt(len(q))  # KS, p = 0.001
    axis = torch.nn.functional.normalize(q[:, :3], dim=-1)
    assert (axis.mean(0).abs() < 4 / math.sqrt(3 * len(q))).all()
    assert (q.mT @ q / len(q) - torch.eye(4) / 4)[:3, :3].abs().max() < 4 * math.sqrt(1 / 24 / len(q)) * 1.2
    assert torch.equal(haar(10).float(), haar(10, dtype=torch.float32))
    assert not torch.equal(haar(10), haar(10, seed=1))
