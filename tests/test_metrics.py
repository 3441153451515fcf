"""Laws of the figures, on posteriors whose answers are known."""

import math

import pytest
import torch
from scipy import stats
from tables import table_posterior

from aquamam.evaluation import metrics
from aquamam.posterior.regions import density_pit
from aquamam.geometry.cells import Cells
from aquamam.errors import InputError
from aquamam.evaluation.metrics import Poses
from aquamam.geometry.rotations import geodesic_angle, multiply, quat_to_matrix, random_quat, rotvec_to_quat
from aquamam.geometry.symmetry import SymmetryGroup

GROUPS = {
    "trivial": SymmetryGroup.trivial(),
    "C4": SymmetryGroup.cyclic(4),
    "cube": SymmetryGroup.octahedral(),
    "cone": SymmetryGroup.revolution(),
    "cylinder": SymmetryGroup.revolution((0.0, 1.0, 0.0), flip=True),
}
EACH_GROUP = pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS.keys())


def pits(truths_from, judged, generator, images=300, samples=60):
    """PIT of truths drawn from one posterior under another, both over two images."""
    truth = truths_from.sample((images,), generator=generator)
    drawn = judged.sample((samples * images,), generator=generator)
    log_p = judged.log_prob(drawn).reshape(samples, images, 2)
    u = torch.rand(images, 2, generator=generator)
    return density_pit(judged.log_prob(truth), log_p, u).flatten()


@pytest.mark.parametrize("chart", ["hemisphere", "atlas"])
@pytest.mark.parametrize("scale", [0.5, 3.0])
def test_truths_drawn_from_the_posterior_have_a_uniform_pit_and_are_covered(chart, scale, generator):
    posterior = table_posterior(Cells.make(chart, 24), scale=scale)
    u = pits(posterior, posterior, generator)
    distance = float(metrics.ks_uniform(u))
    assert metrics.ks_p_value(distance, len(u)) > 0.001
    levels = torch.tensor([0.5, 0.9, 0.95], dtype=torch.float64)
    share, _ = metrics.coverage(u, levels.tolist())
    assert ((share - levels).abs() < 4 * (levels * (1 - levels) / len(u)).sqrt()).all()


@pytest.mark.parametrize(("scale", "side"), [(2.0, 1), (0.3, -1)], ids=["too sharp", "too flat"])
def test_a_distribution_that_is_too_sharp_or_too_flat_is_flagged(scale, side, generator):
    cells = Cells.make("atlas", 24)
    u = pits(table_posterior(cells, scale=1.0), table_posterior(cells, scale=scale), generator)
    assert metrics.ks_p_value(float(metrics.ks_uniform(u)), len(u)) < 1e-6
    share, error = metrics.coverage(u, [0.9])
    assert side * (0.9 - share[0]) > 4 * error[0]
    assert side * (u.mean() - 0.5) > 0.05


def test_ties_are_broken_evenly(generator):
    n = 4000
    flat = torch.zeros(20, n)  # a constant density: only chance ranks the truth
    u = density_pit(torch.zeros(n), flat, torch.rand(n, generator=generator))
    assert metrics.ks_p_value(float(metrics.ks_uniform(u)), n) > 0.001
    few = torch.randint(0, 3, (21, n), generator=generator).float()  # three levels, many ties
    u = density_pit(few[0], few[1:], torch.rand(n, generator=generator))
    assert metrics.ks_p_value(float(metrics.ks_uniform(u)), n) > 0.001


@pytest.mark.parametrize("n", [1, 7, 500])
def test_ks_agrees_with_scipy(n, generator):
    u = torch.rand(n, generator=generator, dtype=torch.float64)
    distance, p = stats.kstest(u.numpy(), "uniform")
    assert float(metrics.ks_uniform(u)) == pytest.approx(distance)
    if n > 5:
        assert metrics.ks_p_value(distance, n) == pytest.approx(p, abs=0.02)


@EACH_GROUP
def test_error_to_any_equivalent_is_zero_and_plain_error_is_not(group, generator):
    q = random_quat((20,), generator=generator, dtype=torch.float64)
    g = group.element(torch.rand(20, 2, generator=generator))
    turned = multiply(q, g)
    assert metrics.rotation_error(turned, q[:, None], group).max() < 1e-6
    if group.order > 1:
        assert metrics.rotation_error(turned, q[:, None]).max() > 0.1
    assert torch.allclose(metrics.rotation_error(turned, q[:, None]), geodesic_angle(turned, q))


@pytest.mark.parametrize("name", ["trivial", "C4", "cube"])
def test_listed_equivalents_and_their_group_agree(name, generator):
    group = GROUPS[name]
    truth, q = (random_quat((30,), generator=generator, dtype=torch.float64) for _ in range(2))
    listed = group.equivalents(truth)
    assert torch.allclose(metrics.rotation_error(q, listed), metrics.rotation_error(q, truth[:, None], group))
    padded = torch.cat([listed, listed[:, :1]], 1)
    assert torch.equal(metrics.rotation_error(q, padded), metrics.rotation_error(q, listed))


def test_likelihood_is_averaged_over_equivalents_before_images():
    log_p = torch.tensor([[1.0, 4.0], [3.0, -math.inf], [5.0, 9.0]])
    assert metrics.image_log_likelihood(log_p, torch.tensor([3, 1])).tolist() == [3.0, 4.0]
    assert metrics.image_log_likelihood(log_p[::2]).tolist() == [3.0, 6.5]
    assert metrics.image_log_likelihood(torch.zeros(3, 0), torch.zeros(0, dtype=torch.long)).shape == (0,)


def test_spread_is_the_expected_angle(generator):
    truth = random_quat((5,), generator=generator, dtype=torch.float64)
    axis = torch.nn.functional.normalize(torch.randn(4000, 5, 3, generator=generator, dtype=torch.float64), dim=-1)
    angle = torch.rand(4000, 5, 1, generator=generator, dtype=torch.float64) * 0.4  # mean 0.2
    samples = multiply(truth, rotvec_to_quat(axis * angle))
    assert torch.allclose(metrics.spread(samples, truth[:, None]), angle.mean(0)[:, 0], atol=1e-9)
    for group in GROUPS.values():
        assert (metrics.spread(samples, truth[:, None], group) <= metrics.spread(samples, truth[:, None]) + 1e-9).all()


def test_least_expected_error_is_the_best_of_the_samples(generator):
    samples = table_posterior(Cells.make("atlas", 12), scale=2.0, batch=3).sample((40,), generator=generator)
    best = metrics.least_expected_error(samples)
    expected = geodesic_angle(samples[:, None], samples[None]).mean(0)  # (samples, images)
    found = geodesic_angle(samples, best).mean(0)
    assert torch.allclose(found, expected.amin(0), atol=2e-3)
    assert metrics.least_expected_error(samples[:, 0]).shape == (4,)
    assert metrics.least_expected_error(samples[:, :0]).shape == (0, 4)
    with pytest.raises(InputError, match="at least one"):
        metrics.least_expected_error(samples[:0])


def test_shares_medians_and_class_means():
    error = torch.tensor([1.0, 14.9, 15.1, 29.0, 90.0, 2.0]).deg2rad()
    assert float(metrics.share_within(error, 15)) == 0.5
    assert float(metrics.share_within(error, 30)) == pytest.approx(5 / 6)
    assert float(metrics.median(torch.tensor([1.0, 4.0, 2.0, 10.0]))) == 3.0
    classes = torch.tensor([0, 0, 0, 0, 0, 1])
    values = torch.tensor([1.0, 1.0, 1.0, 1.0, 1.0, 7.0])
    assert float(metrics.class_mean(values, classes)) == 4.0
    assert float(metrics.class_mean(values, classes, metrics.median)) == 4.0


# --- BOP --------------------------------------------------------------------------------------------------------------


@pytest.fixture
def scene(generator):
    """Points of an object with a half-turn symmetry about z, and a true pose in front of an OpenCV camera."""
    half = torch.randn(40, 3, generator=generator, dtype=torch.float64)
    turn = torch.tensor([-1.0, -1.0, 1.0], dtype=torch.float64)
    symmetries = Poses(torch.stack([torch.eye(3, dtype=torch.float64), turn.diag()]), torch.zeros(2, 3).double())
    R = quat_to_matrix(random_quat((), generator=generator, dtype=torch.float64))
    truth = Poses(R, torch.tensor([0.5, -0.3, 20.0], dtype=torch.float64))
    K = torch.tensor([[500.0, 0, 320], [0, 500, 240], [0, 0, 1]], dtype=torch.float64)
    return torch.cat([half, half * turn]), truth, symmetries, K


def test_bop_errors_are_zero_for_equivalent_poses(scene):
    points, truth, symmetries, K = scene
    turned = Poses(truth.R @ symmetries.R[1], truth.t)
    for error in (
        metrics.mssd(points, turned, truth, symmetries),
        metrics.mspd(points, turned, truth, symmetries, K),
        metrics.add_s(points, turned, truth, chunk=7),
        metrics.add(points, truth, truth),
    ):
        assert error < 1e-6
    assert metrics.add(points, turned, truth) > 0.5


def test_bop_errors_of_a_shift_are_its_length(scene):
    points, truth, symmetries, K = scene
    shift = torch.tensor([0.0, 0.0, 0.1], dtype=torch.float64)
    moved = Poses(truth.R, truth.t + shift)
    assert metrics.add(points, moved, truth) == pytest.approx(0.1)
    assert metrics.mssd(points, moved, truth, symmetries) == pytest.approx(0.1)
    assert metrics.add_s(points, moved, truth) <= 0.1 + 1e-12
    depth = truth.move(points)[:, 2]
    aside = Poses(truth.R, truth.t + torch.tensor([0.1, 0.0, 0.0], dtype=torch.float64))
    assert metrics.mspd(points, aside, truth, symmetries, K) == pytest.approx(float((50 / depth).max()))
