"""Laws of the posterior, on hand-written logits."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from scipy import stats
from tables import legal_cells, table_posterior
from torch.distributions import Distribution

from aquamam.errors import InputError
from aquamam.geometry.cells import Cells
from aquamam.geometry.rotations import LOG_UNIFORM, geodesic_angle, random_quat
from aquamam.posterior.decoding import inverse_cdf
from aquamam.posterior.maps import within

CHARTS = pytest.mark.parametrize("chart", ["hemisphere", "atlas"])
DENSITIES = pytest.mark.parametrize("density", ["cells", "paper"])
EDGES = pytest.mark.parametrize("edge", [{}, {"by_volume": True}], ids=["plain", "by volume"])


def cell_probabilities(posterior) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Chart and cell of every legal sentence, and its probability for each image."""
    cells = posterior.cells
    legal = legal_cells(cells)
    chart = torch.arange(cells.chart.count).repeat_interleave(len(legal))
    cell = legal.repeat(cells.chart.count, 1)
    point = cells.chart.split(cells.chart.join(chart, cells.representative(cell)))._replace(
        chart=chart, u=cells.representative(cell)
    )
    grown = type(point)(*(part[:, None].expand(-1, posterior._batch, *part.shape[1:]) for part in point))
    log_p = [
        posterior._sentence_log_prob(
            type(point)(*(part[i : i + 5000] for part in grown)),
            cell[i : i + 5000, None].expand(-1, posterior._batch, 3),
        )
        for i in range(0, len(cell), 5000)
    ]
    return chart, cell, torch.cat(log_p).double().exp()


@CHARTS
@EDGES
@pytest.mark.parametrize(("bins", "scale"), [(24, 1.0), (24, 20.0), (61, 5.0)])
def test_probabilities_of_legal_cells_sum_to_one(chart, edge, bins, scale):
    cells = Cells.make(chart, bins, **edge)
    _, _, probability = cell_probabilities(table_posterior(cells, scale=scale, batch=1))
    assert torch.allclose(probability.sum(0), torch.ones(1, dtype=torch.float64), atol=1e-5)


def mass_and_error(posterior, generator, count=40_000) -> tuple[torch.Tensor, torch.Tensor]:
    """Total mass by importance sampling from half Haar, half posterior: the weight p / (u/2 + p/2) is at most 2, slivers or not."""
    haar = random_quat((count, 1), generator=generator).expand(count, posterior._batch, 4)
    q = torch.cat([haar, posterior.sample((count,), generator=generator)])
    p = posterior.log_prob(q).double().exp() * math.pi**2
    weight = 2 * p / (1 + p)
    return weight.mean(0), weight.std(0) / len(q) ** 0.5


@CHARTS
@EDGES
@pytest.mark.parametrize("bins", [24, 101, 500])
def test_cells_density_integrates_to_one(chart, edge, bins, generator):
    cells = Cells.make(chart, bins, **edge)
    mass, error = mass_and_error(table_posterior(cells, scale=0.5), generator)
    assert ((mass - 1).abs() < 4 * error).all()
    assert (error < 0.002).all()


def test_the_check_of_total_mass_can_fail(generator):
    """The paper's density misses 2.5 % at N = 500 and more at N = 24."""
    mass, error = mass_and_error(table_posterior(Cells.make("hemisphere", 24, "paper"), scale=0.0), generator)
    assert ((mass - 1).abs() > 4 * error).all()


def test_papers_density_loses_mass_as_documented(generator):
    """Flat logits, N = 500: total mass about 0.975 (docs/concepts.md)."""
    posterior = table_posterior(Cells.make("hemisphere", 500, "paper"), scale=0.0, batch=1)
    mass = posterior.log_prob(random_quat((60_000, 1), generator=generator)).double().exp() * math.pi**2
    assert mass.mean().item() == pytest.approx(0.975, abs=0.01)


@CHARTS
@EDGES
@pytest.mark.parametrize("bins", [8, 15])
def test_sampler_matches_the_density(chart, edge, bins, generator):
    """Chi-square over cells; the same test rejects a density that is 2 % off."""
    cells = Cells.make(chart, bins, **edge)
    posterior = table_posterior(cells, batch=1)
    chart_of, cell, probability = cell_probabilities(posterior)
    count = 400_000
    point = cells.chart.split(posterior.sample((count,), generator=generator)[:, 0].double())
    found = cells.locate(point)

    def key(chart, cell):
        return ((chart * bins + cell[..., 0]) * bins + cell[..., 1]) * bins + cell[..., 2]

    order = torch.randperm(len(cell), generator=generator)
    group = torch.empty(cells.chart.count * bins**3, dtype=torch.long)
    group[key(chart_of, cell)[order]] = torch.arange(len(cell)) % 100
    expected = torch.zeros(100, dtype=torch.float64).index_add_(0, group[key(chart_of, cell)], probability[:, 0])
    observed = torch.bincount(group[key(point.chart, found)], minlength=100)
    assert stats.chisquare(observed, expected / expected.sum() * count).pvalue > 1e-4
    wrong = expected * (1 + 0.02 * (torch.arange(100) % 2 * 2 - 1))
    assert stats.chisquare(observed, wrong / wrong.sum() * count).pvalue < 1e-4


@CHARTS
@DENSITIES
def test_both_signs_and_any_batch_shape_give_the_same(chart, density, generator):
    posterior = table_posterior(Cells.make(chart, 20, density), batch=3)
    q = random_quat((5, 7, 3), generator=generator, dtype=torch.float64)
    log_p = posterior.log_prob(q)
    assert log_p.shape == (5, 7, 3)
    assert torch.equal(posterior.log_prob(-q), log_p)
    assert torch.allclose(
        torch.stack([posterior.log_prob(row) for row in q.reshape(35, 3, 4)]), log_p.reshape(35, 3), atol=1e-6
    )
    assert posterior.log_prob(q[0, 0]).shape == (3,)
    assert posterior.log_prob(q[:0]).shape == (0, 7, 3)
    assert posterior.log_prob(q[0, 0, 0]).shape == (3,)  # one rotation for all images
    assert posterior.log_prob(q[0, :, :1]).shape == (7, 3)
    assert posterior.sample().shape == (3, 4)
    assert posterior.sample((0,)).shape == (0, 3, 4)
    assert posterior.sample((2, 4)).shape == (2, 4, 3, 4)
    assert posterior.mode.shape == (3, 4)


def test_empty_batch_of_images_works():
    posterior = table_posterior(Cells.make("atlas", 20), batch=0)
    assert posterior.log_prob(torch.zeros(5, 0, 4)).shape == (5, 0)
    assert posterior.sample((5,)).shape == (5, 0, 4)
    assert posterior.mode.shape == (0, 4)


@CHARTS
def test_chunks_change_nothing(chart, monkeypatch, generator):
    posterior = table_posterior(Cells.make(chart, 20))
    q = random_quat((50, 2), generator=generator)
    whole, drawn = posterior.log_prob(q), posterior.sample((9,), generator=torch.Generator().manual_seed(3))
    monkeypatch.setattr("aquamam.posterior.sentences.CHUNK_FLOATS", 2000)
    assert posterior._rotations_per_chunk() < 10
    assert torch.allclose(posterior.log_prob(q), whole, atol=1e-5)
    assert posterior.sample((9,), generator=torch.Generator().manual_seed(3)).shape == drawn.shape


@CHARTS
@DENSITIES
def test_one_generator_reaches_every_draw(chart, density):
    posterior = table_posterior(Cells.make(chart, 9, density))
    draws = [posterior.sample((200,), generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    torch.manual_seed(1)
    assert torch.equal(*draws)
    state = torch.get_rng_state()
    posterior.sample((200,), generator=torch.Generator().manual_seed(5))
    assert torch.equal(state, torch.get_rng_state())


@CHARTS
def test_a_wide_beam_finds_the_best_cells_of_all(chart):
    posterior = table_posterior(Cells.make(chart, 6), scale=3.0)
    chart_of, cell, probability = cell_probabilities(posterior)
    best = posterior.topk(len(cell))
    found = best.log_probs.double().exp()
    assert torch.allclose(found[:20], probability.sort(0, descending=True).values[:20], atol=1e-6)
    top = probability.argmax(0)
    centre = posterior.cells.chart.join(chart_of[top], posterior.cells.representative(cell[top]))
    assert geodesic_angle(best.quaternions[0].double(), centre).max() < 1e-3


@CHARTS
@DENSITIES
def test_mode_is_the_greedy_sentence(chart, density):
    posterior = table_posterior(Cells.make(chart, 30, density), scale=4.0)
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


def test_expand_is_a_view(generator):
    posterior = table_posterior(Cells.make("atlas", 12), batch=1)
    wide = posterior.expand((5, 4))
    q = random_quat((3, 5, 4), generator=generator)
    assert torch.allclose(wide.log_prob(q), posterior.log_prob(q.reshape(60, 1, 4)).reshape(3, 5, 4), atol=1e-5)
    assert wide.sample((2,)).shape == (2, 5, 4, 4)
    assert wide.mode.shape == (5, 4, 4)
    assert wide.topk(2).quaternions.shape == (2, 5, 4, 4)
    two = table_posterior(Cells.make("atlas", 12), batch=2)
    assert torch.allclose(two.expand((3, 2)).log_prob(q[:, 0, :2]), two.log_prob(q[:, 0, :2]))
    with pytest.raises(RuntimeError):
        two.expand((3,))
    assert isinstance(wide, Distribution)
    assert wide.event_shape == (4,)


@CHARTS
def test_entropy_agrees_with_integration(chart, generator):
    posterior = table_posterior(Cells.make(chart, 24), scale=0.5)
    value, error = posterior.entropy(20_000, generator=generator)
    log_p = posterior.log_prob(random_quat((60_000, 1), generator=generator)).double()
    surprise = -log_p * log_p.exp() * math.pi**2
    other = surprise.std(0) / 60_000**0.5
    assert ((value - surprise.mean(0)).abs() < 4 * (error.square() + other.square()).sqrt()).all()


def test_measures_convert_on_request(generator):
    posterior = table_posterior(Cells.make("atlas", 12))
    q = random_quat((6, 2), generator=generator)
    assert torch.allclose(posterior.log_prob(q, measure="1"), posterior.log_prob(q) - LOG_UNIFORM, atol=1e-5)


@CHARTS
@DENSITIES
def test_smoothed_labels_tend_to_the_log_likelihood(chart, density, generator):
    posterior = table_posterior(Cells.make(chart, 40, density))
    cells = posterior.cells
    q = random_quat((300, 2), generator=generator, dtype=torch.float64)
    point = cells.chart.split(q)
    centred = cells.chart.join(point.chart, cells.representative(cells.locate(point)))
    keep = ~cells.is_cut(cells.locate(cells.chart.split(centred)))
    near = posterior.smoothed_log_prob(centred, 0.05)
    exact = posterior.log_prob(centred)
    assert torch.allclose(near[keep], exact[keep], atol=1e-4)
    assert posterior.smoothed_log_prob(q, 6.0).isfinite().all()


def test_least_expected_error_beats_the_mode_in_the_posteriors_own_eyes(generator):
    posterior = table_posterior(Cells.make("atlas", 12), scale=2.0, batch=4)
    truth = posterior.sample((4000,), generator=generator)
    error = {
        s: geodesic_angle(truth, posterior.predict(s, generator=generator)).mean()
        for s in ("greedy", "beam", "expected")
    }
    assert error["expected"] < min(error["greedy"], error["beam"])


@pytest.mark.parametrize(
    ("q", "rule"),
    [
        (torch.zeros(2, 3), "last axis of 4"),
        (torch.zeros(2, 4), "unit norm"),
        (torch.full((2, 4), torch.nan), "finite"),
        (torch.ones(2, 4), "unit norm"),
        (torch.eye(4)[:3], "batch"),
        (torch.eye(4)[:2].long(), "floating"),
    ],
)
def test_bad_quaternions_get_one_clear_sentence(q, rule):
    with pytest.raises(InputError, match=rule):
        table_posterior(Cells.make("atlas", 12)).log_prob(q)


def test_bad_counts_get_one_clear_sentence():
    posterior = table_posterior(Cells.make("atlas", 12))
    with pytest.raises(InputError, match="positive"):
        posterior.topk(0)
    with pytest.raises(InputError, match="at least 2"):
        posterior.entropy(1)
    with pytest.raises(InputError, match="strategy"):
        posterior.predict("guess")
    with pytest.raises(InputError, match="negative"):
        posterior.sample((-1,))


@CHARTS
@EDGES
def test_a_map_has_the_likelihoods_of_its_rotations_one_by_one(chart, edge, generator):
    """Many rotations share the pass of their first token."""
    cells = Cells.make(chart, 12, **edge)
    posterior = table_posterior(cells, batch=1)
    q = random_quat((8 * cells.first_tokens, 1), generator=generator)
    with torch.no_grad():
        alone, together = posterior.log_prob(q), within(posterior).log_prob(q)
    assert torch.allclose(alone, together, atol=1e-6)


@CHARTS
@EDGES
@pytest.mark.parametrize("tolerance", [1e-5, 1e-3, 5e-2])
def test_a_distribution_within_a_tolerance_is_one_and_no_farther(chart, edge, tolerance, generator, monkeypatch):
    """All probabilities sum to one, their total variation distance keeps to the tolerance, and likely cells have their own."""
    cells = Cells.make(chart, 24, **edge)
    whole = table_posterior(cells, scale=8.0, batch=1)
    near = within(whole, tolerance)
    asked = []
    rest = near.unwrapped.conditionals.rest
    with torch.no_grad():
        near.log_prob(random_quat((1, 1), generator=generator))  # all first tokens pass once
        chart, cell, p = cell_probabilities(whole)
        monkeypatch.setattr(
            near.unwrapped.conditionals, "rest", lambda chart, *a: asked.append(len(chart)) or rest(chart, *a)
        )
        q = cells.chart.join(chart, cells.representative(cell))
        point = cells.chart.split(q)
        assert torch.equal(cells.locate(point), cell)
        r = torch.exp(near.log_prob(q[:, None]).double() - cells.log_factor(point, cell)[:, None])
    assert r.sum() == pytest.approx(1, abs=1e-5)
    # probabilities are float32
    assert (p - r).abs().sum() / 2 <= tolerance + 1e-6
    assert sum(asked) < len(p) / 3
    assert p[(p - r).abs() < 1e-4 * p].sum() > 1 - tolerance - 1e-5


def test_maps_of_several_images_within_a_tolerance_are_those_of_each(generator):
    cells = Cells.make("atlas", 12)
    posterior = table_posterior(cells, scale=6.0, batch=2)
    q = random_quat((3 * cells.first_tokens, 2), generator=generator)
    with torch.no_grad():
        exact = posterior.log_prob(q)
        near = within(posterior, 1e-4).log_prob(q, measure="1")
        each = [within(posterior._some(slice(i, i + 1)), 1e-4).log_prob(q[:, i : i + 1], measure="1") for i in range(2)]
    assert torch.allclose(near, torch.cat(each, 1), atol=1e-5)
    assert not torch.allclose(near, exact - LOG_UNIFORM, atol=1e-3)
    near = within(posterior, 1e-4).log_prob(q)
    assert torch.allclose(near, exact, atol=1e-5)  # with gradients, the whole


def test_bad_tolerances_get_one_clear_sentence():
    posterior = table_posterior(Cells.make("atlas", 12))
    for tolerance in (-1e-3, 1.0, math.nan):
        with pytest.raises(InputError, match="tolerance"):
            within(posterior, tolerance)


def test_likelihoods_and_predictions_do_not_import_sympy():
    """Some functions of torch do on their first call, which is a quarter of the time that a prediction takes to start."""
    code = (
        "import sys, torch; from tables import table_posterior; from aquamam.geometry.cells import Cells;"
        "p = table_posterior(Cells.make('atlas', 12), batch=1); p.log_prob(p.sample((3,))); p.mode; p.topk(2);"
        "sys.exit('sympy' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent)


def test_inverse_cdf_finds_the_token_at_any_size_and_none_of_probability_zero():
    generator = torch.Generator().manual_seed(0)
    for tokens in (5, 64, 200, 1000):
        p = torch.rand(tokens, generator=generator)
        p[torch.rand(tokens, generator=generator) < 0.5] = 0
        p[-1] = 0
        p[0] += 0.1
        u = (torch.arange(4000, dtype=torch.float64) + 0.5) / 4000
        u[-1] = 1 - 2.0**-53
        token = inverse_cdf(p.expand(4000, 1, tokens), u[:, None])[:, 0]
        assert bool((p[token] > 0).all())
        share = token.bincount(minlength=tokens) / 4000
        assert torch.allclose(share, p / p.sum(), atol=1 / 1999)
