"""Laws of the figures, on posteriors whose answers are known."""

import math

import pytest
import torch
from scipy.stats import kstest
from tables import table_posterior

from aquamam.evaluation import metrics
from aquamam.geometry.cells import Cells
from aquamam.geometry.rotations import geodesic_angle, multiply, random_quat
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.posterior.distribution import least_expected_error
from aquamam.posterior.regions import density_pit

GROUPS = {
    "trivial": SymmetryGroup.trivial(),
    "C4": SymmetryGroup.cyclic(4),
    "cube": SymmetryGroup.octahedral(),
    "cone": SymmetryGroup.revolution(),
    "cylinder": SymmetryGroup.revolution((0.0, 1.0, 0.0), flip=True),
}


def uniform(u: torch.Tensor) -> bool:
    return kstest(u.numpy(), "uniform").pvalue > 0.001


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
    posterior = table_posterior(Cells(chart, 24), scale=scale)
    u = pits(posterior, posterior, generator)
    assert uniform(u)
    levels = torch.tensor([0.5, 0.9, 0.95], dtype=torch.float64)
    share, _ = metrics.coverage(u, levels.tolist())
    assert ((share - levels).abs() < 4 * (levels * (1 - levels) / len(u)).sqrt()).all()


@pytest.mark.parametrize(("scale", "side"), [(2.0, 1), (0.3, -1)], ids=["too sharp", "too flat"])
def test_a_distribution_that_is_too_sharp_or_too_flat_is_flagged(scale, side, generator):
    cells = Cells("atlas", 24)
    u = pits(table_posterior(cells, scale=1.0), table_posterior(cells, scale=scale), generator)
    assert not uniform(u)
    share, error = metrics.coverage(u, [0.9])
    assert side * (0.9 - share[0]) > 4 * error[0]
    assert side * (u.mean() - 0.5) > 0.05


def test_ties_are_broken_evenly(generator):
    n = 4000
    for levels in (1, 3):  # a constant density, where only chance ranks the truth; and one with many ties
        few = torch.randint(0, levels, (21, n), generator=generator).float()
        assert uniform(density_pit(few[0], few[1:], torch.rand(n, generator=generator)))


@pytest.mark.parametrize("group", GROUPS.values(), ids=GROUPS.keys())
def test_errors_are_to_the_nearest_equivalent_listed_or_of_a_group(group, generator):
    truth, q = (random_quat((30,), generator=generator, dtype=torch.float64) for _ in range(2))
    equivalent = multiply(truth, group.element(torch.rand(30, 2, generator=generator)))
    assert metrics.rotation_error(equivalent, truth[:, None], group).max() < 1e-6
    assert torch.allclose(metrics.rotation_error(equivalent, truth[:, None]), geodesic_angle(equivalent, truth))
    if group.order > 1:
        assert metrics.rotation_error(equivalent, truth[:, None]).max() > 0.1
    if group.axis is None:
        listed = group.equivalents(truth)
        by_list = metrics.rotation_error(q, listed)
        assert torch.allclose(by_list, metrics.rotation_error(q, truth[:, None], group))
        assert torch.equal(by_list, metrics.rotation_error(q, torch.cat([listed, listed[:, :1]], 1)))


def test_likelihood_is_averaged_over_equivalents_before_images():
    log_p = torch.tensor([[1.0, 4.0], [3.0, -math.inf], [5.0, 9.0]])
    assert metrics.image_log_likelihood(log_p, torch.tensor([3, 1])).tolist() == [3.0, 4.0]
    assert metrics.image_log_likelihood(torch.zeros(3, 0), torch.zeros(0, dtype=torch.long)).shape == (0,)


def test_least_expected_error_is_the_best_of_the_samples(generator):
    samples = table_posterior(Cells("atlas", 12), scale=2.0, batch=3).sample((40,), generator=generator)
    best = least_expected_error(samples)
    expected = geodesic_angle(samples[:, None], samples[None]).mean(0)  # (samples, images)
    assert torch.allclose(geodesic_angle(samples, best).mean(0), expected.amin(0), atol=2e-3)
    assert least_expected_error(samples[:, 0]).shape == (4,)
    assert least_expected_error(samples[:, :0]).shape == (0, 4)
