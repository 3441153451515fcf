"""AQuaMaM's posterior on hand-written logits; test_laws.py has what every posterior promises."""

import math

import pytest
import torch
from tables import legal_cells, table_posterior

from aquamam.geometry.cells import Cells
from aquamam.geometry.rotations import geodesic_angle, inverse_cdf, random_quat
from aquamam.posterior.maps import within

CHARTS = pytest.mark.parametrize("chart", ["hemisphere", "atlas"])
DENSITIES = pytest.mark.parametrize("density", ["cells", "paper"])
BY_VOLUME = pytest.mark.parametrize("by_volume", [False, True])


def every_cell(cells: Cells) -> tuple[torch.Tensor, torch.Tensor]:
    """A rotation of each legal cell of all charts, and what a probability there is multiplied by to give a density."""
    legal = legal_cells(cells)
    chart, cell = torch.arange(cells.chart.count).repeat_interleave(len(legal)), legal.repeat(cells.chart.count, 1)
    q = cells.chart.join(chart, cells.representative(cell))
    point = cells.chart.split(q)
    assert torch.equal(cells.locate(point), cell)
    return q, cells.log_factor(point, cell).exp()


@torch.no_grad()
def cell_probabilities(posterior) -> torch.Tensor:
    q, factor = every_cell(posterior.unwrapped.cells)
    return posterior.log_prob(q[:, None]).double().exp() / factor[:, None]


@CHARTS
@BY_VOLUME
@pytest.mark.parametrize(("bins", "scale"), [(15, 1.0), (24, 20.0)])
def test_probabilities_of_legal_cells_sum_to_one(chart, by_volume, bins, scale):
    posterior = table_posterior(Cells(chart, bins, by_volume=by_volume), scale=scale, batch=1)
    assert cell_probabilities(posterior).sum() == pytest.approx(1, abs=1e-5)


def test_papers_density_loses_mass_as_documented(generator):
    """Flat logits, N = 500: total mass about 0.975 (docs/concepts.md)."""
    posterior = table_posterior(Cells("hemisphere", 500, "paper"), scale=0.0, batch=1)
    mass = posterior.log_prob(random_quat((20_000, 1), generator=generator)).double().exp() * math.pi**2
    assert mass.mean().item() == pytest.approx(0.975, abs=0.01)


@CHARTS
def test_a_wide_beam_finds_the_best_cells_of_all(chart):
    posterior = table_posterior(Cells(chart, 6), scale=3.0)
    probability, (q, _) = cell_probabilities(posterior), every_cell(posterior.cells)
    best = posterior.topk(len(probability))
    expected = probability.sort(0, descending=True).values[:20]
    assert torch.allclose(best.log_probs.double().exp()[:20], expected, atol=1e-6)
    assert geodesic_angle(best.quaternions[0].double(), q[probability.argmax(0)]).max() < 1e-3


@CHARTS
@DENSITIES
def test_mode_is_the_greedy_sentence(chart, density):
    posterior = table_posterior(Cells(chart, 30, density), scale=4.0)
    cells = posterior.cells
    token = posterior.first_log_probs().argmax(-1)
    index, bins = token // cells.bins, [token % cells.bins]
    for step in (1, 2):
        seen = torch.stack([cells.centre(b) for b in bins], -1).float()[None]
        logits, _ = posterior.conditionals.rest(index[None], seen)
        legal = cells.legal(torch.stack(bins, -1))
        bins.append(logits[0, :, step - 1].masked_fill(~legal, -torch.inf).argmax(-1))
    expected = cells.chart.join(index, cells.representative(torch.stack(bins, -1)))
    assert torch.allclose(posterior.mode.double(), expected, atol=1e-6)


@CHARTS
@DENSITIES
def test_smoothed_labels_tend_to_the_log_likelihood(chart, density, generator):
    posterior = table_posterior(Cells(chart, 40, density))
    cells = posterior.cells
    q = random_quat((300, 2), generator=generator, dtype=torch.float64)
    point = cells.chart.split(q)
    centred = cells.chart.join(point.chart, cells.representative(cells.locate(point)))
    keep = ~cells.is_cut(cells.locate(cells.chart.split(centred)))
    near = posterior.smoothed_log_prob(centred, 0.05)
    assert torch.allclose(near[keep], posterior.log_prob(centred)[keep], atol=1e-4)
    assert posterior.smoothed_log_prob(q, 6.0).isfinite().all()


@CHARTS
@BY_VOLUME
def test_a_map_has_the_likelihoods_of_its_rotations_one_by_one(chart, by_volume, generator):
    """Many rotations share the pass of their first token; with gradients a tolerance is none."""
    posterior = table_posterior(Cells(chart, 12, by_volume=by_volume), batch=2, scale=6.0)
    q, near = random_quat((300, 2), generator=generator), within(posterior, 1e-2)
    assert torch.allclose(near.log_prob(q), posterior.log_prob(q), atol=1e-5)
    with torch.no_grad():
        assert torch.allclose(within(posterior).log_prob(q), posterior.log_prob(q), atol=1e-5)
        assert not torch.allclose(near.log_prob(q), posterior.log_prob(q), atol=1e-3)


@CHARTS
@BY_VOLUME
@pytest.mark.parametrize("tolerance", [1e-4, 5e-2])
def test_a_distribution_within_a_tolerance_is_one_and_no_farther(chart, by_volume, tolerance, generator, monkeypatch):
    """All probabilities sum to one, the total variation distance keeps to the tolerance, likely cells keep theirs."""
    whole = table_posterior(Cells(chart, 20, by_volume=by_volume), scale=8.0, batch=1)
    near, p = within(whole, tolerance), cell_probabilities(whole)
    with torch.no_grad():
        near.log_prob(random_quat((1, 1), generator=generator))  # all first tokens pass once
    asked, kind = [], type(whole.conditionals)
    rest = kind.rest
    monkeypatch.setattr(kind, "rest", lambda self, chart, *a: asked.append(len(chart)) or rest(self, chart, *a))
    r = cell_probabilities(near)
    assert r.sum() == pytest.approx(1, abs=1e-5)
    assert (p - r).abs().sum() / 2 <= tolerance + 1e-6  # probabilities are float32
    assert sum(asked) < len(p) / 3
    assert p[(p - r).abs() < 1e-4 * p].sum() > 1 - tolerance - 1e-5


@pytest.mark.parametrize("tokens", [5, 1000])
def test_inverse_cdf_finds_the_token_at_any_size_and_none_of_probability_zero(tokens, generator):
    p = torch.rand(tokens, generator=generator)
    p[torch.rand(tokens, generator=generator) < 0.5] = 0
    p[-1] = 0
    p[0] += 0.1
    u = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
    u[-1] = 1 - 2.0**-53
    token = inverse_cdf(p, u)
    assert bool((p[token] > 0).all())
    assert torch.allclose(token.bincount(minlength=tokens) / 4000, p / p.sum(), atol=1 / 1999)
