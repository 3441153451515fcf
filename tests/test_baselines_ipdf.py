"""IPDF: the same score on every path, the paper's normalisation, the grid in pieces."""

import math

import pytest
import torch
from registry import TOY, wild

from aquamam.baselines import ipdf
from aquamam.baselines.ipdf import IPDF, IPDFConfig
from aquamam.geometry.grid import cell_volume, grid_cell_of, so3_grid
from aquamam.geometry.rotations import geodesic_angle, inverse, multiply, quat_to_matrix, random_quat


def tiny(noise: float = 0.1, **options) -> IPDF:
    torch.manual_seed(0)
    config = {**TOY, "width": 32, "octaves": 2, "level": 1, **options}
    return wild(IPDF(IPDFConfig(**config)), noise).eval()


def plain_scores(model: IPDF, image: int, q: torch.Tensor) -> torch.Tensor:
    """f of the paper's description, one rotation after the other, in float64."""
    net = model.net.double()
    feature = model.encoder.table.weight[image].double()
    scores = []
    for R in quat_to_matrix(q.double()).flatten(-2):
        waves = []
        for octave in range(model.config.octaves):
            waves += [torch.sin(2**octave * math.pi * R), torch.cos(2**octave * math.pi * R)]
        x = torch.relu(net.image(feature) + net.query(torch.cat(waves)))
        for layer in net.hidden:
            x = torch.relu(layer(x))
        scores.append(net.out(x)[0])
    model.net.float()
    return torch.stack(scores)


@torch.no_grad()
def test_scores_of_1000_rotations_agree_on_all_paths(generator):
    """The training path, the grid's path (rotations shared by the images, in pieces) and a plain re-computation."""
    model = tiny(level=2)
    q = torch.cat([random_quat((1000,), generator=generator, dtype=torch.float64), so3_grid(2)[:200]])
    images = torch.arange(2)
    context = model.net.image(model.encoder(images))
    trained = model.scores(context, q[:, None].expand(-1, 2, 4).float())
    shared = model.scores(context, q[:, None])
    plain = torch.stack([plain_scores(model, image, q) for image in (0, 1)], -1)
    assert trained.abs().max() > 0.3
    assert torch.allclose(trained.double(), plain, atol=2e-5)
    assert torch.allclose(shared.double(), plain, atol=2e-5)
    on_grid = torch.cat(list(model.posterior(images).grid_scores()))
    assert torch.allclose(on_grid[:200], plain[1000:], atol=2e-5)


@torch.no_grad()
def test_truth_is_normalised_over_the_grid_turned_to_it(generator, monkeypatch):
    monkeypatch.setattr(ipdf, "TRUTHS_AT_ONCE", 4)  # of six
    model = tiny(noise=0.3, normaliser="truth")
    q = random_quat((3, 2), generator=generator, dtype=torch.float64)
    found = model(torch.arange(2)).log_prob(q)
    for r in range(3):
        for image in range(2):
            rotated = multiply(so3_grid(1), multiply(inverse(so3_grid(1)[-1]), q[r, image]))
            scores = plain_scores(model, image, rotated)
            expected = scores.log_softmax(0)[-1] - math.log(cell_volume(1))
            assert found[r, image].item() == pytest.approx(expected.item(), abs=1e-4)


def test_truth_never_exceeds_the_ceiling_of_its_grid(generator):
    model = tiny(noise=2.0, normaliser="truth")
    posterior = model.posterior(torch.arange(2))
    assert posterior.ceiling == pytest.approx(math.log(576 / math.pi**2))
    with torch.no_grad():
        assert (posterior.log_prob(random_quat((50, 2), generator=generator)) <= posterior.ceiling + 1e-5).all()
    assert model.posterior(torch.arange(2), level=5).ceiling == pytest.approx(12.38, abs=0.01)


@pytest.mark.parametrize("rows", [64, 2**14])
def test_sampled_points_have_the_grids_probabilities(rows, monkeypatch, generator):
    monkeypatch.setattr(ipdf, "ROWS_AT_ONCE", rows)
    model = tiny(noise=0.3, samples="points")
    posterior = model.posterior(torch.arange(2))
    count = 40_000
    with torch.no_grad():
        p = torch.cat(list(posterior.grid_scores())).softmax(0)
    drawn = posterior.sample((count,), generator=generator)
    for image in range(2):
        cell = grid_cell_of(drawn[:, image], 1)
        assert geodesic_angle(drawn[:, image].double(), so3_grid(1)[cell]).max() < 1e-3
        found = torch.bincount(cell, minlength=576).double()
        chi_square = ((found - count * p[:, image]).square() / (count * p[:, image])).sum().item()
        assert abs(chi_square - 575) < 5 * math.sqrt(2 * 575)


def test_mode_is_the_grids_best_and_ascent_climbs_from_it():
    model = tiny(noise=0.3)
    images = torch.arange(3)
    posterior = model.posterior(images)
    with torch.no_grad():
        best = so3_grid(1)[torch.cat(list(posterior.grid_scores())).argmax(0)]
        assert geodesic_angle(posterior.mode.double(), best).max() < 1e-3
        climbed = model.posterior(images, ascent_steps=30).mode.double()
        start, end = posterior.scores(best[None])[0], posterior.scores(climbed[None])[0]
        assert (end > start).all()
        step = 0.02 * torch.randn(200, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        nearby = torch.nn.functional.normalize(climbed + step, dim=-1)
        assert (posterior.scores(nearby) <= end + 0.05 * (end - start)).all()


@pytest.mark.parametrize("shared", [False, True])
def test_loss_is_negative_sampling(shared, generator, monkeypatch):
    model = tiny(negatives=100, shared_negatives=shared)
    images, q = torch.arange(3), random_quat((2, 3), generator=generator)

    def loss() -> torch.Tensor:
        return model.loss(images, q, generator=torch.Generator().manual_seed(7))

    drawn = random_quat((100, 1 if shared else 3), generator=torch.Generator().manual_seed(7)).expand(100, 3, 4)
    context = model.net.image(model.encoder(images))
    true, others = model.scores(context, q), model.scores(context, drawn)
    rows = [torch.cat([true[r : r + 1], others]).log_softmax(0)[0] for r in range(2)]
    expected = -(torch.stack(rows) - math.log(math.pi**2 / 101)).mean()
    assert torch.allclose(loss(), expected, atol=1e-5)
    whole = torch.autograd.grad(loss(), model.net.query.weight)[0]
    # pieces of seven negatives, recomputed in the backward pass
    monkeypatch.setattr(ipdf, "CHUNK_FLOATS", 2 * 32 * 3 * 7)
    assert torch.allclose(torch.autograd.grad(loss(), model.net.query.weight)[0], whole, atol=1e-5)


@torch.no_grad()
def test_negatives_near_the_truth_estimate_the_volume_that_uniform_ones_do(generator):
    q = random_quat((3, 2), generator=generator, dtype=torch.float64)
    proposal = ipdf.Proposal(q.reshape(-1, 4), 0.5)
    drawn, within = proposal.draw(40_000, generator), math.radians(20)
    weight = torch.exp(-proposal.log_density(drawn)) / math.pi**2
    for chosen, share in ((drawn[:, 0] < 9, 1.0), (geodesic_angle(drawn, q[0, 0]) < within, within - math.sin(within))):
        estimates = weight * chosen
        expected = share if share == 1 else share / math.pi
        assert abs(float(estimates.mean()) - expected) < 4 * float(estimates.std()) / 200
    images, told = torch.arange(2), []
    for near in (0.0, 0.5):
        model = tiny(negatives=4000, shared_negatives=True, near_negatives=near)
        told.append(model.objective(images, q.float(), generator=generator))
    assert torch.allclose(*told, atol=0.1)
