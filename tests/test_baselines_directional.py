"""Bingham's constant against brute integration, exact draws, von Mises on Euler angles."""

import math

import pytest
import torch
from scipy import stats

from aquamam.baselines.bingham import Bingham, BinghamConfig, BinghamMixture
from aquamam.baselines.vonmises import log_euler_density
from aquamam.geometry.directional import log_bingham_constant, log_von_mises, sample_bingham, sample_von_mises
from aquamam.geometry.rotations import LOG_UNIFORM, geodesic_angle, multiply, quat_to_euler, random_quat


def constant_and_moments(z: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """ln F and its gradient, which is the mean of x^2."""
    z = z.clone().requires_grad_()
    value = log_bingham_constant(z)
    return value.detach(), torch.autograd.grad(value.sum(), z)[0]


def random_concentrations(count: int, largest: float, generator: torch.Generator) -> torch.Tensor:
    """z = (-a, -b, -c, 0) with a, b, c from 1e-4 to `largest`, evenly on a log scale: nearly uniform, rings, needles,
    peaks."""
    decades = math.log10(largest) + 4
    size = 10 ** (torch.rand(count, 3, generator=generator, dtype=torch.float64) * decades - 4)
    return torch.cat([-size, torch.zeros(count, 1, dtype=torch.float64)], -1)


def brute_constant_and_moments(z: torch.Tensor, nodes: int = 80) -> tuple[torch.Tensor, torch.Tensor]:
    """The integral over the half sphere, projected from its centre to R^3, on nodes^3 double-exponential points."""
    reach = 3.4
    v = (torch.arange(nodes, dtype=torch.float64) + 0.5) * reach / nodes
    point = torch.sinh(math.pi / 2 * torch.sinh(v))
    weight = math.pi / 2 * torch.cosh(v) * torch.cosh(math.pi / 2 * torch.sinh(v)) * reach / nodes
    scale = 1 / (1 - z[:3]).sqrt()
    squares = [(s * point).square() for s in scale]
    a, b, c = squares[0][:, None, None], squares[1][:, None], squares[2]
    r = 1 + a + b + c
    density = torch.exp((z[0] * a + z[1] * b + z[2] * c) / r) / r.square()
    density *= scale.prod() * weight[:, None, None] * weight[:, None] * weight
    total = density.sum()
    density /= r
    moments = torch.stack([(density * square).sum() for square in (a, b, c, torch.ones(()))]) / total
    return (16 * total).log(), moments  # eight octants, two halves


def test_binghams_constant_and_gradient_agree_with_brute_integration(generator):
    """200 parameter sets from nearly uniform to very peaked, 1e-6 relative."""
    z = random_concentrations(200, 1e5, generator)
    z[0] = 0
    log_constant, moments = constant_and_moments(z)
    for row, value, moment in zip(z, log_constant, moments):
        brute, brute_moment = brute_constant_and_moments(row)
        assert abs(math.expm1(value - brute)) < 1e-6
        assert torch.allclose(moment, brute_moment, rtol=1e-6, atol=0)


def test_binghams_constant_tends_to_that_of_two_gaussians_of_three_dimensions():
    k = 1e7  # the next term of the series is of order 1 / k
    peaked = log_bingham_constant(torch.tensor([-k, -k, -k, 0], dtype=torch.float64))
    assert peaked.item() == pytest.approx(math.log(2) + 1.5 * math.log(math.pi / k), abs=1e-6)


def test_binghams_constant_shifts_with_z_and_forgets_its_order(generator):
    z = random_concentrations(50, 1e6, generator)
    value, moments = constant_and_moments(z)
    order = torch.randperm(4, generator=generator)
    shuffled, shuffled_moments = constant_and_moments(z[:, order] + 3)
    assert torch.allclose(shuffled, value + 3, atol=1e-8)
    assert torch.allclose(shuffled_moments, moments[:, order], rtol=1e-6)
    assert torch.allclose(moments.sum(-1), torch.ones(50, dtype=torch.float64), atol=1e-12)


@pytest.mark.parametrize(
    "z", [[0, 0, 0, 0], [-1e4, -10, -1, 0], [-1e6, -1e-3, -1e3, 0], [-1e8, -1e8, -1e8, 0], [-2, 0]]
)
def test_bingham_draws_have_the_right_spread(z, generator):
    """Means of x^2 and x^4 against quadrature within four standard errors."""
    z = torch.tensor(z, dtype=torch.float64)
    count = 40_000
    x = sample_bingham(z.expand(count, len(z)), generator=generator)
    assert torch.allclose(x.norm(dim=-1), torch.ones(count, dtype=torch.float64))
    if len(z) == 4:
        expected = constant_and_moments(z)[1]
    else:
        angle = (torch.arange(2000, dtype=torch.float64) + 0.5) * math.pi / 1000
        density = torch.exp(z[0] * angle.cos().square() + z[1] * angle.sin().square())
        first = (density * angle.cos().square()).sum() / density.sum()
        expected = torch.stack([first, 1 - first])
    error = x.square().std(0) / count**0.5
    assert ((x.square().mean(0) - expected).abs() < 4 * error).all()


@pytest.mark.parametrize("concentration", [1e-3, 1.0, 30.0, 1e8])
def test_von_mises_draws_follow_scipys_distribution(concentration, generator):
    kappa = torch.full((20_000,), concentration, dtype=torch.float64)
    x = sample_von_mises(torch.zeros_like(kappa), kappa, generator=generator)
    x = torch.remainder(x + math.pi, 2 * math.pi) - math.pi
    # SciPy's distribution function is a normal approximation above 50; so is the truth at 1e8
    cdf = stats.vonmises(concentration).cdf if concentration < 50 else stats.norm(scale=concentration**-0.5).cdf
    assert stats.kstest(x.numpy(), cdf).pvalue > 1e-3
    angle = torch.linspace(-3, 3, 7, dtype=torch.float64)
    if concentration < 50:
        expected = torch.tensor(stats.vonmises.logpdf(angle.numpy(), concentration))
        assert torch.allclose(log_von_mises(angle, torch.zeros(()), kappa[:7]), expected, atol=1e-9)


def random_mixture(components: int, generator: torch.Generator) -> BinghamMixture:
    def turn() -> torch.Tensor:
        return random_quat((1, components), generator=generator, dtype=torch.float64)

    z = random_concentrations(components, 1e2, generator)[None]
    return BinghamMixture(torch.full((1, components), -math.log(components)).double(), turn(), turn(), z)


def test_bingham_components_are_uniform_at_zero_and_peak_at_their_modes(generator):
    flat = BinghamMixture(torch.zeros(1, 1).double(), *(random_quat((2, 1, 1)).double()), torch.zeros(1, 1, 4).double())
    q = random_quat((50, 1), generator=generator)
    assert torch.allclose(flat.log_prob(q), torch.full((50, 1), LOG_UNIFORM), atol=1e-5)
    one = random_mixture(1, generator)
    assert (one.log_prob(one.mode) >= one.log_prob(q)).all()
    assert geodesic_angle(one.mode, multiply(one.left, one.right)[:, 0].float()).max() < 1e-3


def test_a_bingham_component_turns_with_its_quaternions(generator):
    """p(a q b) under (a l, r b) is p(q) under (l, r)."""
    old = random_mixture(3, generator)
    a, b = random_quat((2, 1, 1), generator=generator, dtype=torch.float64)
    new = BinghamMixture(old.log_weight, multiply(a, old.left), multiply(old.right, b), old.z)
    q = random_quat((20, 1), generator=generator, dtype=torch.float64)
    assert torch.allclose(new.log_prob(multiply(multiply(a, q), b)), old.log_prob(q), atol=1e-9)


def test_winners_loss_bounds_the_likelihood_when_nothing_is_relaxed(generator):
    tiny = {"encoder": "category", "category_features": 8, "categories": 2, "components": 3, "relaxation": 0.0}
    model = Bingham(BinghamConfig(**tiny, training="winner"))
    images, q = torch.arange(2), random_quat((5, 2), generator=generator)
    likelihood = -model(images).log_prob(q).mean()
    assert model.loss(images, q) > likelihood
    one = Bingham(BinghamConfig(**{**tiny, "components": 1}, training="winner"))
    assert torch.allclose(one.loss(images, q), -one(images).log_prob(q).mean(), atol=1e-5)


def test_both_euler_preimages_are_counted(generator):
    """The density of rotations is that of the angles over |cos b| / 8, whichever of both triples names the rotation."""
    q = random_quat((30,), generator=generator, dtype=torch.float64)
    mean = torch.tensor([0.3, 2.5, -1.0], dtype=torch.float64)  # a middle angle beyond a quarter turn
    other = torch.stack([mean[0] + math.pi, math.pi - mean[1], mean[2] + math.pi])
    kappa = torch.tensor([2.0, 3.0, 4.0], dtype=torch.float64)
    log_p = log_euler_density(q, mean, kappa, "YXZ")
    assert torch.allclose(log_p, log_euler_density(q, other, kappa, "YXZ"), atol=1e-9)
    a, b, c = quat_to_euler(q, "YXZ").unbind(-1)
    plain = torch.zeros_like(a)
    for angles in ((a, b, c), (a + math.pi, math.pi - b, c + math.pi)):
        p = torch.ones_like(a)
        for angle, m, k in zip(angles, mean, kappa):
            p = p * torch.exp(k * torch.cos(angle - m)) / (2 * math.pi * torch.special.i0(k))
        plain = plain + p
    assert torch.allclose(log_p.exp(), plain * 8 / b.cos().abs(), rtol=1e-9)
