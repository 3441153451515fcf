"""Laws of every posterior and of every model in the registry."""

import math
from functools import cache
from typing import NamedTuple

import pytest
import torch
from refusals import refused
from registry import FLOOR, MODELS, POSTERIORS, inputs, make_model
from scipy import stats
from torch import Tensor
from torch.distributions import Distribution

from aquamam.checkpoints.checkpoint import KINDS, load, save_model
from aquamam.geometry.grid import grid_cell_of, grid_size, random_in_cell
from aquamam.geometry.rotations import LOG_UNIFORM, random_quat
from aquamam.posterior import distribution
from aquamam.posterior.calibration import Calibration
from aquamam.posterior.distribution import Calibrated, RotationDistribution

ALL = pytest.mark.parametrize("name", POSTERIORS)
EVERY_MODEL = pytest.mark.parametrize("name", MODELS)


def having(*conditions) -> pytest.MarkDecorator:
    names = [name for name, entry in POSTERIORS.items() if all(condition(entry) for condition in conditions)]
    return pytest.mark.parametrize("name", names)


@cache
def posterior_of(name: str, images: int = 2) -> RotationDistribution:
    return POSTERIORS[name].make(images)


def log_prob(posterior: RotationDistribution, q: Tensor, **options) -> Tensor:
    with torch.no_grad():
        return posterior.log_prob(q, **options)


# --- densities and samplers -------------------------------------------------------------------------------------------


class Evaluated(NamedTuple):
    """Density times pi^2 at rotations that are uniform in each of 576 cells, and at the posterior's own draws."""

    haar_cell: Tensor
    haar: Tensor
    drawn_cell: Tensor
    drawn: Tensor


@cache
def evaluate(name: str) -> Evaluated:
    generator = torch.Generator().manual_seed(1)
    posterior = posterior_of(name, images=1)
    cell = torch.arange(grid_size(1)).repeat(POSTERIORS[name].rotations)
    haar = random_in_cell(cell, 1, generator=generator)[:, None]
    drawn = posterior.sample((len(cell),), generator=generator).double()
    p = [log_prob(posterior, q)[:, 0].double().exp() * math.pi**2 for q in (haar, drawn)]
    return Evaluated(cell, p[0], grid_cell_of(drawn[:, 0], 1), p[1])


@having(lambda entry: entry.mass_error < 1)
def test_density_integrates_to_one(name):
    """Draws from half Haar, half posterior: the weight p / (u/2 + p/2) is at most 2, so no peak spoils the estimate."""
    found = evaluate(name)
    p = torch.cat([found.haar, found.drawn])
    weight = 2 * p / (1 + p)
    error = weight.std().item() / len(p) ** 0.5
    assert error < 0.02
    assert abs(weight.mean().item() - 1) < 4 * error + POSTERIORS[name].mass_error


def bridge_p_value(found: Evaluated, wrong: float) -> float:
    r"""Whether $E_{q \sim p}[1_G u/(u + p)] = E_{q \sim u}[1_G p/(u + p)]$ on 24 sets G of cells: if and only if draws
    follow p. Both sides are means of numbers below 1. `wrong` multiplies the density by 1 ± wrong in every other set.
    """
    sets = 24
    group = torch.randperm(grid_size(1), generator=torch.Generator().manual_seed(2)) % sets
    factor = (1 + wrong * (group % 2 * 2 - 1)).double()
    zeros = torch.zeros(sets, dtype=torch.float64)
    n = len(found.drawn)
    left = 1 / (1 + found.drawn * factor[found.drawn_cell])
    a = zeros.index_add(0, group[found.drawn_cell], left) / n
    variance = (zeros.index_add(0, group[found.drawn_cell], left.square()) / n - a.square()) / n
    p = (found.haar * factor[found.haar_cell]).reshape(-1, grid_size(1))
    right = p / (1 + p)
    b = zeros.index_add(0, group, right.mean(0)) / grid_size(1)
    variance = variance + zeros.index_add(0, group, right.var(0)) / len(right) / grid_size(1) ** 2
    return float(stats.chi2.sf(((a - b).square() / variance).sum().item(), sets))


@having(lambda entry: entry.independent and entry.mass_error < 1 and entry.rotations > 5)
def test_sampler_matches_the_density(name):
    """The same test rejects a density that is some per cent off."""
    assert bridge_p_value(evaluate(name), 0.0) > 1e-4
    assert bridge_p_value(evaluate(name), 0.08 * (60 / POSTERIORS[name].rotations) ** 0.5) < 0.02


@having(lambda entry: entry.mass_error < 1 and entry.rotations > 5)
def test_entropy_agrees_with_integration(name, generator):
    value, error = posterior_of(name, images=1).entropy(2000, generator=generator)
    p = evaluate(name).haar
    surprise = -(p.clamp_min(1e-300).log() + LOG_UNIFORM) * p
    other = surprise.std() / len(p) ** 0.5
    assert abs(float(value) - float(surprise.mean())) < 4 * math.hypot(float(error), float(other)) + 0.01


@ALL
def test_both_signs_any_batch_shape_and_any_measure_give_the_same(name, generator):
    posterior = posterior_of(name, images=3)
    q = random_quat((2, 3, 3), generator=generator, dtype=torch.float64)
    log_p = log_prob(posterior, q)
    assert log_p.shape == (2, 3, 3)
    assert torch.equal(log_prob(posterior, -q), log_p)
    assert torch.allclose(log_prob(posterior, q, measure="1") + LOG_UNIFORM, log_p, atol=1e-5)
    rows = torch.stack([log_prob(posterior, row) for row in q.reshape(6, 3, 4)])
    assert torch.allclose(rows, log_p.reshape(6, 3), atol=1e-4)
    assert log_prob(posterior, q[0, 0, 0]).shape == (3,)  # one rotation for all images
    assert log_prob(posterior, q[0, :, :1]).shape == (3, 3)
    assert log_prob(posterior, q[:0]).shape == (0, 3, 3)
    assert log_prob(posterior, q.float()).dtype == torch.float32
    assert posterior.sample().shape == posterior.mode.shape == (3, 4)
    assert posterior.sample((0,)).shape == (0, 3, 4)
    drawn = posterior.sample((2, 4))
    assert drawn.shape == (2, 4, 3, 4)
    assert torch.allclose(drawn.norm(dim=-1).double(), torch.ones(2, 4, 3).double(), atol=1e-5)
    assert (drawn[..., 3] >= 0).all()


@ALL
def test_empty_batch_of_images_works(name):
    posterior = posterior_of(name, images=0)
    assert posterior.log_prob(torch.zeros(5, 0, 4)).shape == (5, 0)
    assert posterior.sample((5,)).shape == (5, 0, 4)
    assert posterior.mode.shape == (0, 4)


@ALL
def test_expand_is_a_view(name, generator):
    posterior = posterior_of(name, images=1)
    wide = posterior.expand((2, 3))
    q = random_quat((4, 2, 3), generator=generator)
    one_by_one = log_prob(posterior, q.reshape(24, 1, 4)).reshape(4, 2, 3)
    assert torch.allclose(log_prob(wide, q), one_by_one, atol=1e-4)
    assert wide.sample((4,)).shape == (4, 2, 3, 4)
    assert wide.mode.shape == (2, 3, 4)
    assert isinstance(wide, Distribution)
    assert wide.event_shape == (4,)
    with pytest.raises(RuntimeError):
        posterior_of(name, images=3).expand((2,))


@having(lambda entry: entry.images_apart)
def test_an_image_is_answered_alike_alone_and_in_a_batch(name, generator):
    together = posterior_of(name, images=3)
    q = random_quat((20, 3), generator=generator)
    for images in (slice(1, 2), torch.tensor([2, 0])):
        alone = log_prob(together._some(images), q[:, images])
        assert torch.allclose(alone, log_prob(together, q)[:, images], atol=1e-4)


@ALL
def test_chunks_change_nothing(name, generator, monkeypatch):
    posterior, q = posterior_of(name), random_quat((20, 2), generator=generator)
    whole = log_prob(posterior, q)
    monkeypatch.setattr(distribution, "CHUNK_FLOATS", 14 * posterior.row_floats)
    assert len(posterior._chunks(20)) == 3
    assert torch.allclose(log_prob(posterior, q), whole, atol=1e-4)
    assert posterior.sample((9,)).shape == (9, 2, 4)


@ALL
def test_one_generator_reaches_every_draw(name):
    posterior = posterior_of(name)
    state = torch.get_rng_state()
    draws = [posterior.sample((20,), generator=torch.Generator().manual_seed(5)) for _ in range(2)]
    assert torch.equal(*draws)
    assert torch.equal(posterior.mode, posterior.mode)
    assert torch.equal(state, torch.get_rng_state())
    assert not torch.equal(draws[0], posterior.sample((20,), generator=torch.Generator().manual_seed(6)))


@having(lambda entry: not entry.greedy)
def test_mode_is_likelier_than_nearly_all_draws(name, generator):
    posterior = posterior_of(name)
    drawn = posterior.sample((200 if POSTERIORS[name].rotations > 5 else 10,), generator=generator)
    better = log_prob(posterior, posterior.mode) > log_prob(posterior, drawn)
    assert (better.double().mean(0) >= 0.9).all()


@ALL
def test_a_floor_bounds_the_density_from_below(name, generator):
    """And no other than by its share: p = (1 - floor) inner + floor / pi^2."""
    inner = posterior_of(name)
    floored = Calibrated(inner, Calibration(floor=FLOOR))
    q = torch.cat([random_quat((50, 2), generator=generator), inner.sample((50,), generator=generator).float()])
    before, after = log_prob(inner, q).double(), log_prob(floored, q).double()
    assert (after >= math.log(FLOOR) + LOG_UNIFORM - 1e-5).all()
    assert torch.allclose(after.exp(), (1 - FLOOR) * before.exp() + FLOOR / math.pi**2, rtol=1e-4)


@ALL
def test_the_best_cells_have_the_probability_of_the_density(name):
    """What `topk` tells is `log_prob` but for the volume of the cell; without cells it says so."""
    posterior = posterior_of(name)
    if type(posterior.unwrapped)._cell is RotationDistribution._cell:
        if name != "fused":
            refused("discrete cells", posterior.topk, 3)
        return
    best = posterior.topk(12)
    assert best.quaternions.shape == (12, 2, 4)
    assert (best.log_probs.diff(dim=0) <= 1e-6).all()
    code, log_factor = posterior._cell(best.quaternions.double())
    assert all(len(column.unique(dim=0)) == 12 for column in code.unbind(1))
    told = log_prob(posterior, best.quaternions.double()) - log_factor
    cells = getattr(posterior.unwrapped, "cells", None)
    # the paper's cut cells are shown to the network elsewhere
    cut = cells is not None and cells.density == "paper" and cells.is_cut(code[..., 1:])
    off = torch.where(torch.as_tensor(cut), 0.0, best.log_probs - told)
    assert off.abs().max() < (0.01 if name == "floor" else 1e-4)  # which adds a little to each cell
    wide = posterior.expand((5, 2)).topk(2)
    assert wide.quaternions.shape == (2, 5, 2, 4)
    assert torch.equal(wide.log_probs[:, 3], posterior.topk(2).log_probs)


# --- models -----------------------------------------------------------------------------------------------------------


def test_every_kind_of_checkpoint_is_in_the_registry():
    assert set(KINDS) == {kind for kind, _, _ in MODELS.values()}


@EVERY_MODEL
def test_checkpoints_keep_everything(name, tmp_path, generator):
    model = make_model(name)
    note = {"note": "hello", "model": "mine", "self": 1}  # any names
    save_model(model, tmp_path / "model.safetensors", note)
    again = load(tmp_path / "model.safetensors")
    assert type(again) is type(model)
    assert (again.kind, again.config, again.calibration) == (MODELS[name][0], model.config, model.calibration)
    assert note.items() <= again.info.items()
    x, q = inputs(model, 2), random_quat((3, 2), generator=generator)
    assert torch.equal(log_prob(again(x), q), log_prob(model(x), q))


@EVERY_MODEL
def test_images_in_a_batch_do_not_see_each_other(name, generator):
    model, q = make_model(name), random_quat((5, 3), generator=generator)
    x = inputs(model, 3)
    together = log_prob(model(x), q)
    alone = torch.cat([log_prob(model(x[i : i + 1]), q[:, i : i + 1]) for i in range(3)], 1)
    assert torch.allclose(together, alone, atol=1e-4)
    assert model(x[:0]).mode.shape == (0, 4)


def labels() -> tuple[Tensor, Tensor]:
    """Three images of one, two and two rotations; the missing label has weight zero."""
    q = random_quat((2, 3), generator=torch.Generator().manual_seed(4))
    return q, torch.tensor([[1.0, 0.5, 0.5], [0.0, 0.5, 0.5]])


@EVERY_MODEL
@pytest.mark.parametrize("what", ["loss", "smoothed loss", "likelihood"])
def test_gradients_are_finite_and_reach_every_weight(name, what, generator):
    model, (q, _) = make_model(name).train(), labels()
    x = inputs(model, 3)
    if what == "likelihood":
        value = model(x).log_prob(q).mean()
    else:
        value = model.loss(x, q, smoothing=2.0 * (what != "loss"), generator=generator)
    assert value.shape == ()
    value.backward()
    # the score's own bias cancels in IPDF's softmax
    silent = {"net.out.bias"} if MODELS[name][0] == "ipdf" else set()
    for label, p in model.named_parameters():
        assert p.grad is not None, label
        assert p.grad.isfinite().all(), label
        assert p.grad.abs().max() > 0 or label in silent, label


@EVERY_MODEL
def test_weights_choose_among_an_images_rotations(name):
    model, (q, weights) = make_model(name), labels()
    x, other = inputs(model, 3), q.clone()
    other[1, 0] = random_quat(generator=torch.Generator().manual_seed(9))  # a label of weight zero

    def loss(q, weights=None):
        return model.loss(x, q, weights=weights, generator=torch.Generator().manual_seed(0)).item()

    assert loss(q, weights) == pytest.approx(loss(other, weights), abs=1e-5)
    assert loss(q, torch.full((2, 3), 0.5)) == pytest.approx(loss(q), abs=1e-5)


@EVERY_MODEL
def test_training_learns_a_tiny_problem(name):
    model, (q, weights) = make_model(name, fresh=True).train(), labels()
    x, losses = inputs(model, 3), []
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(30):
        loss = model.loss(x, q, weights=weights, generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert sum(losses[-5:]) / 5 < losses[0] - 1
