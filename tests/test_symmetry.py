"""Symmetry groups are groups, and distances over them are distances between what is seen."""

import dataclasses
import json
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.spatial.transform import Rotation

from aquamam.geometry import rotations as rot
from aquamam.geometry.symmetry import SymmetryGroup

laws = settings(max_examples=25, deadline=None)
GOLDEN = (1 + math.sqrt(5)) / 2
axes = st.sampled_from([(0.0, 0.0, 1.0), (1.0, 0.0, 0.0), (0.3, -2.0, 0.5)])


# Names and arguments, built inside the tests: hypothesis wants no randomness but its own, and beartype uses some.
discrete = st.one_of(
    st.sampled_from([("trivial",), ("tetrahedral",), ("octahedral",), ("icosahedral",)]),
    st.tuples(st.just("cyclic"), st.integers(1, 12), axes),
    st.tuples(st.just("dihedral"), st.integers(1, 8)),
)
any_group = st.one_of(discrete, st.tuples(st.just("revolution"), axes, st.booleans()))


def build(spec: tuple, seed: int = 0) -> SymmetryGroup:
    """A named group in a frame of its own."""
    return getattr(SymmetryGroup, spec[0])(*spec[1:]).conjugated(haar(seed=seed))


def haar(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return rot.random_quat(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def within(q: torch.Tensor, elements: torch.Tensor) -> torch.Tensor:
    """Angle from every q to the nearest element."""
    return rot.geodesic_angle(q.unsqueeze(-2), elements).amin(-1)


def as_sets_equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    return bool(within(a, b).max() < 1e-12) and bool(within(b, a).max() < 1e-12)


@laws
@given(discrete, st.integers(0, 99))
def test_products_and_inverses_stay_in_the_group(spec, seed):
    g = build(spec, seed).elements
    assert within(rot.multiply(g[:, None], g), g).max() < 1e-13
    assert within(rot.inverse(g), g).max() < 1e-13
    assert torch.equal(g[0], torch.tensor([0, 0, 0, 1]).double())
    apart = rot.geodesic_angle(g[:, None], g) + 10 * torch.eye(len(g))
    assert len(g) == 1 or apart.min() > math.radians(25)


def test_named_groups_have_their_orders_and_are_scipys_up_to_their_orientation():
    for ours, order, theirs in (
        (SymmetryGroup.trivial(), 1, "C1"),
        (SymmetryGroup.cyclic(7), 7, "C7"),
        (SymmetryGroup.dihedral(1), 2, "C2"),
        (SymmetryGroup.dihedral(6), 12, "D6"),
        (SymmetryGroup.tetrahedral(), 12, "T"),
        (SymmetryGroup.octahedral(), 24, "O"),
        (SymmetryGroup.icosahedral(), 60, "I"),
    ):
        assert ours.order == order
        angles = rot.geodesic_angle(ours.elements, torch.eye(4, dtype=torch.float64)[3]).sort().values
        assert np.allclose(np.sort(Rotation.create_group(theirs).magnitude()), angles, atol=1e-12)
    assert SymmetryGroup.revolution().order == math.inf
    assert len(SymmetryGroup.revolution(flip=True).elements) == 2


@pytest.mark.parametrize(
    ("group", "vertices"),
    [
        (SymmetryGroup.tetrahedral, [(1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1)]),
        (SymmetryGroup.octahedral, [(x, y, z) for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)]),
        (
            SymmetryGroup.icosahedral,
            [np.roll((0, a, b * GOLDEN), i) for a in (-1, 1) for b in (-1, 1) for i in range(3)],
        ),
        (lambda: SymmetryGroup.cyclic(4), [(1, 0, 1), (0, 1, 1), (-1, 0, 1), (0, -1, 1)]),
        (lambda: SymmetryGroup.dihedral(2, (1, 1, 0), (0, 0, 1)), [(3, 3, 0), (-3, -3, 0), (0, 0, 1), (0, 0, -1)]),
    ],
)
def test_named_groups_permute_the_vertices_of_their_solids(group, vertices):
    vertices = torch.tensor(np.array(vertices)).double()
    for g in group().elements:
        assert torch.cdist(rot.rotate(g, vertices), vertices).amin(-1).max() < 1e-12


def test_generators_are_completed_to_their_group():
    quarter = rot.rotvec_to_quat(torch.tensor([[0, 0, math.pi / 2]], dtype=torch.float64))
    assert as_sets_equal(SymmetryGroup.generated(quarter).elements, SymmetryGroup.cyclic(4).elements)
    assert SymmetryGroup.generated(torch.zeros(0, 4)).order == 1
    both = torch.cat((quarter, rot.rotvec_to_quat(torch.tensor([[math.pi / 2, 0, 0]], dtype=torch.float64))))
    assert as_sets_equal(SymmetryGroup.generated(both).elements, SymmetryGroup.octahedral().elements)


@laws
@given(any_group, st.integers(0, 999))
def test_distance_ignores_the_group_and_the_frame_which_moves_the_point_it_acts_about(spec, seed):
    group = dataclasses.replace(build(spec, seed), offset=torch.tensor([1.0, 2, 3]).double())
    q1, q2 = haar(2, 8, seed=seed)
    distance = group.distance(q1, q2)
    assert (distance <= rot.geodesic_angle(q1, q2) + 1e-14).all()
    assert torch.allclose(distance, group.distance(q2, q1), atol=1e-13)
    assert torch.allclose(distance, group.distance(-q1, q2), atol=0)
    alike = group.equivalents(q1, count=7)
    assert torch.equal(alike[..., 0, :], q1)
    assert (group.distance(alike, q1[:, None]) < 1e-13).all()
    assert torch.allclose(group.distance(alike, q2[:, None]), distance[:, None].expand(alike.shape[:-1]), atol=1e-13)
    turn = haar(seed=seed + 1)
    turned = group.conjugated(turn)
    assert torch.allclose(turned.offset, rot.rotate(turn, group.offset))
    undo = rot.inverse(turn)
    assert torch.allclose(turned.distance(rot.multiply(q1, undo), rot.multiply(q2, undo)), distance, atol=1e-13)


@laws
@given(any_group, st.integers(0, 999))
def test_distance_is_the_smallest_angle_over_all_equivalents(spec, seed):
    group = build(spec, seed)
    q1, q2 = haar(2, 5, seed=seed)
    count = 720
    brute = rot.geodesic_angle(group.equivalents(q1, count), q2[:, None]).amin(-1)
    slack = 1e-13 if group.axis is None else math.pi / count
    distance = group.distance(q1, q2)
    assert (distance <= brute + 1e-13).all()
    assert (brute <= distance + slack).all()
    nearest = group.nearest(q1, q2)
    assert torch.allclose(rot.geodesic_angle(nearest, q2), distance, atol=1e-13)
    assert (group.distance(nearest, q1) < 1e-13).all()


def test_distance_is_accurate_near_zero_and_keeps_the_dtype():
    group, q = SymmetryGroup.revolution(flip=True), haar(20)
    for size in (0.0, 1e-12, 1e-6):
        step = rot.rotvec_to_quat(torch.tensor([size, 0, 0], dtype=torch.float64))
        other = rot.multiply(group.equivalents(q, 3)[:, 4], step)
        assert (group.distance(q, other) - size).abs().max() < 1e-15
    single = group.distance(q.float(), haar(20, seed=1).float())
    assert single.dtype == torch.float32
    assert torch.allclose(single.double(), group.distance(q, haar(20, seed=1)), atol=1e-6)


@pytest.mark.parametrize("shape", [(), (0,), (2, 3)])
def test_groups_take_any_batch_shape(shape):
    q = haar(*shape, dtype=torch.float32)
    cube, can = SymmetryGroup.octahedral(), SymmetryGroup.revolution(flip=True)
    assert cube.equivalents(q).shape == (*shape, 24, 4)
    assert can.equivalents(q, count=360).shape == (*shape, 720, 4)
    for group in (cube, can):
        assert group.distance(q, haar(dtype=torch.float32)).shape == shape
        assert group.nearest(q, q).shape == (*shape, 4)
        assert group.equivalents(q).dtype == torch.float32


def test_gradients_are_finite_at_zero_and_at_the_farthest():
    for group in (SymmetryGroup.octahedral(), SymmetryGroup.revolution(flip=False)):
        q = haar(5).requires_grad_()
        reverse = torch.tensor([1.0, 0, 0, 0]).double()  # turns the axis of revolution around
        for other in (q.detach(), group.equivalents(q.detach())[:, 3], rot.multiply(q.detach(), reverse)):
            (gradient,) = torch.autograd.grad(group.distance(q, other).sum(), q)
            assert torch.isfinite(gradient).all()


@laws
@given(any_group, st.sampled_from([(0.0, 0.0, 0.0), (10.0, -4.0, 3.0)]))
def test_json_and_bop_keep_the_group_and_where_it_acts(spec, offset):
    group = dataclasses.replace(build(spec), offset=torch.tensor(offset).double())
    q1, q2 = haar(2, 50)
    for kind in ("dict", "bop"):
        data = json.loads(json.dumps(getattr(group, f"to_{kind}")()))
        again = getattr(SymmetryGroup, f"from_{kind}")(data)
        assert again.order == group.order
        assert torch.allclose(again.distance(q1, q2), group.distance(q1, q2), atol=1e-12)
        # BOP tells no point for an object without symmetry, and of points that all motions fix any will do
        moved = again.offset - group.offset
        for g in group.elements if kind == "bop" else ():
            assert torch.allclose(rot.rotate(g, moved), moved, atol=1e-6)
        assert kind == "bop" or not moved.any()
        assert group.axis is None or not moved.abs().max() > 1e-6


def test_bop_entries_are_rigid_motions_about_the_offset_without_the_identity():
    offset = (10.0, -4.0, 3.0)
    entry = SymmetryGroup.cyclic(3).to_bop(offset)
    poses = torch.tensor(entry["symmetries_discrete"]).double().view(-1, 4, 4)
    assert len(poses) == 2
    assert "symmetries_continuous" not in entry
    fixed = torch.tensor([*offset, 1.0]).double()
    assert torch.allclose(poses @ fixed, fixed, atol=1e-12)
    line = {"symmetries_continuous": [{"axis": [0.0, 1.0, 0.0], "offset": [10.0, -4.0, 3.0]}]}
    assert SymmetryGroup.revolution((0, 1, 0)).to_bop(offset) == SymmetryGroup.from_bop(line).to_bop() == line
    assert SymmetryGroup.trivial().to_bop() == {}


def test_bop_entries_as_people_write_them_are_understood():
    half = [-1, 0, 0, 0.5, 0, -1, 0, 0.2, 0, 0, 1, 0, 0, 0, 0, 1]
    group = SymmetryGroup.from_bop({"diameter": 3.0, "symmetries_discrete": [half]})
    assert group.order == 2
    assert torch.allclose(group.offset, torch.tensor([0.25, 0.1, 0]).double())
    rounded = np.eye(4)
    c, s = math.cos(0.4 * math.pi), math.sin(0.4 * math.pi)
    rounded[:2, :2] = np.round([[c, -s], [s, c]], 4)
    assert SymmetryGroup.from_bop({"symmetries_discrete": [rounded.tolist()]}).order == 5
    spin = {"symmetries_continuous": [{"axis": [0, 0, 2], "offset": [0, 0, 0]}], "symmetries_discrete": [half]}
    assert len(SymmetryGroup.from_bop(spin).elements) == 1  # the half turn is one of the rotations about z
    assert SymmetryGroup.from_bop({}).order == 1
    # Linemod's eggbox repeats after 179.8 degrees about an axis that is nearly z
    row = [-0.999964, -0.00333777, -0.0077452, 0.232611, 0.00321462, -0.999869, 0.0158593, 0.694388]
    row += [-0.00779712, 0.0158338, 0.999844, -0.0792063, 0, 0, 0, 1]
    measured = SymmetryGroup.from_bop({"symmetries_discrete": [row]})
    assert (measured.order, float(measured.elements[1, 2].abs()) > 0.999) == (2, True)


def test_random_elements_are_equivalences_and_reach_every_coset(generator):
    for group in (SymmetryGroup.octahedral(), SymmetryGroup.revolution((0, 1, 0), flip=True), SymmetryGroup.trivial()):
        g = group.element(torch.rand((2000, 2), generator=generator, dtype=torch.float64))
        q = rot.random_quat((2000,), generator=generator, dtype=torch.float64)
        assert group.distance(rot.multiply(q, g), q).max() < 1e-7
        if group.axis is None:
            coset = rot.geodesic_angle(g[:, None], group.elements).argmin(-1)
            assert len(coset.unique()) == len(group.elements)
