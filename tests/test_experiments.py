"""The toy and the peak in small: their data, their ceilings, and what fitting and judging promise."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from refusals import refused
from scipy.spatial.transform import Rotation
from torch import Tensor

from aquamam.baselines.ipdf import IPDF, IPDFConfig
from aquamam.baselines.mog import AQuaMaMMoG, MoGConfig
from aquamam.checkpoints.checkpoint import load
from aquamam.geometry.rotations import canonical, random_quat
from aquamam.network.model import AQuaMaM, ModelConfig
from aquamam.reproduce import fit_pairs, samples, toy
from aquamam.reproduce.fit_pairs import FAST, PAPER, PLAIN, Fit, Pairs, sentence_log_probs

SMALL = {"dim": 32, "heads": 4, "layers": 2, "hidden": 64, "embedding": "category", "tokens": 4}
TINY = ModelConfig(bins=200, chart="hemisphere", density="paper", **SMALL)
TINY_MOG = MoGConfig(encoder="category", dim=16, heads=2, layers=1, hidden=16, components=4, tokens=2)
TINY_IPDF = IPDFConfig(encoder="category", category_features=8, width=16, depth=1, negatives=15, level=1)


def make(config: ModelConfig = TINY, seed: int = 0) -> AQuaMaM:
    torch.manual_seed(seed)
    return AQuaMaM(config)


def log_factor(pairs: Pairs, model: AQuaMaM) -> Tensor:
    point = model.cells.chart.split(pairs.q[pairs.real])
    return model.cells.log_factor(point, model.cells.locate(point))


def log_likelihood(model: AQuaMaM, pairs: Pairs) -> float:
    with torch.no_grad():
        log_p = sentence_log_probs(model, pairs) + log_factor(pairs, model)
    return float((pairs.weight[pairs.real] * log_p).sum())


@pytest.fixture(scope="module")
def pairs() -> Pairs:
    return toy.toy_pairs()


@pytest.fixture(scope="module")
def learned(pairs) -> Fit:
    # with so few bins the paper's density would show the network other values in sampling than in training
    return Fit(make(replace(TINY, density="cells")), pairs, replace(FAST, steps=400)).run()


def test_toy_rotations_are_those_that_scipy_draws_after_seed_2010(pairs):
    np.random.seed(2010)  # noqa: NPY002
    for i in range(6):
        expected = canonical(torch.from_numpy(np.atleast_2d(Rotation.random(2**i).as_quat())))
        assert torch.allclose(pairs.of(i), expected, atol=1e-12)
    assert int(pairs.real.sum()) == 63
    assert torch.allclose(pairs.weight.sum(0), torch.full((6,), 1 / 6).double())


def test_ceilings_of_toy_and_peak_are_the_papers_log_likelihoods(pairs):
    cells, peak = toy.TOY_MODEL.cells, Pairs.uniform([toy.peak_rotation()[None]])
    assert pairs.ceilings(cells) == pytest.approx((-2.5 * math.log(2), 27.1229), abs=5e-5)
    assert peak.ceilings(cells) == pytest.approx((0, 29.51), abs=1e-3)


def test_rotations_that_share_a_cell_share_its_probability_in_the_ceiling():
    q = random_quat((2,), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    shared = Pairs.uniform([torch.cat([q, q[:1] + 1e-7])])
    best, _ = shared.ceilings(replace(TINY, density="cells").cells)
    assert best == pytest.approx((2 * math.log(2 / 3) + math.log(1 / 3)) / 3)


@pytest.mark.parametrize(("chart", "density"), [("hemisphere", "paper"), ("hemisphere", "cells"), ("atlas", "cells")])
def test_log_probs_of_pairs_and_their_gradients_are_those_of_the_posterior(pairs, chart, density):
    model = make(replace(TINY, chart=chart, density=density))
    coefficients = torch.randn(63, generator=torch.Generator().manual_seed(1))
    fast = sentence_log_probs(model, pairs) + log_factor(pairs, model)
    (coefficients * fast).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    slow = model(torch.arange(6)).log_prob(pairs.q)[pairs.real]
    (coefficients * slow).sum().backward()
    assert torch.allclose(fast, slow, atol=1e-4)
    for name, p in model.named_parameters():
        assert torch.allclose(gradients[name], p.grad, atol=1e-3), name


@pytest.mark.parametrize("model", [AQuaMaMMoG(TINY_MOG), make()], ids=["mog", "aquamam"])
def test_an_expected_loss_is_the_mean_over_a_replicated_batch(pairs, model):
    category = pairs.real.nonzero()[:, 1]
    copies = 2 ** (5 - category)  # the paper's way to the limit of infinitely many samples
    category, q = category.repeat_interleave(copies), pairs.q[pairs.real].repeat_interleave(copies, 0)
    assert len(q) == 6 * 32
    with torch.no_grad():
        replicated, loss = float(model.loss(category, q[None])), float(Fit(model, pairs, PLAIN).loss(pairs, 0))
    if isinstance(model, AQuaMaM):  # the constant part of the density is left out
        replicated += float((pairs.weight[pairs.real] * log_factor(pairs, model)).sum())
    assert loss == pytest.approx(replicated, rel=1e-5)


def test_sampled_batches_have_the_right_mean(pairs):
    many = [pairs.batch(128, np.random.default_rng([4, step])) for step in range(2000)]
    assert all(float(batch.weight.sum()) == pytest.approx(1) for batch in many)
    q, weight = pairs.q[pairs.real], pairs.weight[pairs.real]
    drawn = torch.cat([batch.q[batch.real] for batch in many])
    same = (drawn[:, None] == q).all(-1).double()
    mean = same.T @ torch.cat([batch.weight[batch.real] for batch in many]) / len(many)
    assert torch.all((mean - weight).abs() < 4.5 * (weight * (1 - weight) / (128 * len(many))).sqrt())


def test_a_tiny_toy_learns_to_its_ceiling(learned, pairs):
    _, best = pairs.ceilings(learned.model.cells)
    assert best - 0.01 < log_likelihood(learned.model, pairs) <= best + 1e-4
    assert learned.curve[0] > 10
    assert len(learned.curve) == 400


@pytest.mark.parametrize("batches", ["expected", "sampled"])
@pytest.mark.parametrize("system", ["aquamam", "ipdf"])
def test_a_resumed_fit_equals_an_uninterrupted_one(pairs, tmp_path, monkeypatch, system, batches):
    config, state = replace(FAST, steps=9, batches=batches), tmp_path / "state.pt"

    def fit(seed: int, place=None, **changes) -> Fit:
        torch.manual_seed(seed)
        model = AQuaMaM(TINY) if system == "aquamam" else IPDF(TINY_IPDF)
        return Fit(model, pairs, replace(config, **changes), place)

    whole = fit(0).run()
    stopped = fit(0, state)
    step = stopped.step

    def press_ctrl_c(number: int) -> float:
        if number == 5:
            raise KeyboardInterrupt
        return step(number)

    monkeypatch.setattr(stopped, "step", press_ctrl_c)
    monkeypatch.setattr(fit_pairs, "SAVE_EVERY", 0.0)
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    resumed = fit(99, state).run()  # other weights: everything must come from the state
    assert resumed.curve == whole.curve
    for a, b in zip(resumed.model.state_dict().values(), whole.model.state_dict().values()):
        assert torch.equal(a, b)
    refused("other settings", fit(0, state, lr=1e-3).run)


def test_the_papers_schedule_halves_on_plateaus_and_stops_at_the_second_idle_one(pairs):
    fit = Fit(make(), pairs, replace(PAPER, epoch=1, batches="expected"))
    weight = fit.model.start
    losses = iter([5.0, 4.0, *[4.0] * 5, 3.0, *[3.0] * 5, *[3.0] * 5])
    # an epoch's loss is taken without a gradient; that of its step is of no matter here
    fit.loss = lambda *_: weight.sum() if torch.is_grad_enabled() else torch.tensor(next(losses))
    done = []
    for step in range(1, 19):
        fit.step(step)
        done.append(fit.progress == 1)
    assert done == [False] * 17 + [True]
    assert fit.optimizer.param_groups[0]["lr"] == PAPER.lr / 8


def test_samples_of_a_learned_model_match_the_truth(learned, pairs):
    with torch.no_grad():
        posterior = learned.model(torch.arange(6)).unwrapped
    judged = samples.judge(pairs, samples.draw(posterior, pairs, 6000, seed=1))
    assert judged["samples"] == sum(row["samples"] for row in judged["viewpoints"]) == 6000
    assert judged["wrong_sentences"] < 30
    assert judged["mean_distance_deg"] < 3.5  # the first rotation is near 180 degrees, where cells are wide
    assert all(row["p_value"] > 1e-3 for row in judged["viewpoints"])


def test_lopsided_samples_are_caught():
    random = np.random.default_rng(0)
    assert samples.compare_shares(np.array([500, 500, 500, 500]), random)["p_value"] == pytest.approx(1)
    found = samples.compare_shares(np.array([650, 450, 450, 450]), random)
    assert found["p_value"] < 1e-6
    assert found["total_variation"] == pytest.approx(0.075)
    assert found["total_variation"] > 1.5 * found["total_variation_of_truth"]


@pytest.fixture
def small(monkeypatch) -> None:
    monkeypatch.setattr(toy, "TOY_MODEL", TINY)
    monkeypatch.setattr(toy, "MOG_MODEL", TINY_MOG)


def test_reproduce_toy_judges_all_systems_by_one_test(small, pairs, tmp_path, prints):
    arguments = "--steps 30 --samples 600 --seed 3 --other-steps 3 --negatives 15 --level 1 --systems aquamam ipdf mog"
    told = prints("reproduce", "toy", "--out", tmp_path, *arguments.split())
    for words in ("log-likelihood", "Reduced against the paper", "15 negatives", "has not converged"):
        assert words in told
    result = json.loads((tmp_path / "toy.json").read_text())
    assert {"ceiling", "wrong_sentences", "mean_distance_deg", "seconds", "threads", "parameters"} <= result.keys()
    assert (result["samples"], result["steps"], result["seed"]) == (600, 30, 3)
    for part in (result, result["ipdf"], result["mog"]):
        assert [len(row["counts"]) for row in part["viewpoints"]] == [1, 2, 4, 8, 16, 32]
        assert {"total_variation", "total_variation_of_truth", "p_value"} <= part["viewpoints"][5].keys()
    assert result["ipdf"]["log_likelihood"] <= result["ipdf"]["ceiling"] == pytest.approx(math.log(576 / math.pi**2))
    assert result["ipdf"]["parameters"] == 748_545
    assert result["mog"]["ceiling"] is None
    for name in ("toy_proportions", "toy_curve", "toy_proportions_ipdf", "toy_curve_ipdf", "toy_proportions_mog"):
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    assert list(tmp_path.glob("*state*")) == []
    model = load(tmp_path / "model.safetensors")
    assert log_likelihood(model, pairs) == pytest.approx(result["log_likelihood"], abs=1e-4)


def test_the_papers_scale_is_told_as_no_reduction():
    assert not any(toy.SCALES["paper"].reduced(name) for name in toy.NAMES)
    assert all(toy.SCALES["cpu"].reduced(name) for name in toy.NAMES)
    paper = toy.SCALES["paper"]
    assert replace(paper, grid=replace(paper.grid, level=4)).reduced("ipdf")


def test_reproduce_mog_draws_the_appendix(small, tmp_path, prints):
    prints("reproduce", "mog", "--out", tmp_path, "--other-steps", 2, "--samples", 100)
    result = json.loads((tmp_path / "mog.json").read_text())
    assert 0 <= result["unimodal"]["mean_distance_deg"] <= 180
    assert all((tmp_path / figure["file"]).exists() for figure in result["section"]["figures"])


def test_reproduce_peak_reaches_its_ceiling_in_both_measures(small, tmp_path, prints):
    q = random_quat(generator=torch.Generator().manual_seed(5), dtype=torch.float64).tolist()
    assert "volume 1" in prints("reproduce", "peak", "--out", tmp_path, "--steps", 300, "--rotation", *q)
    result = json.loads((tmp_path / "peak.json").read_text())
    assert result["ceiling"] - 0.01 < result["log_likelihood"] <= result["ceiling"] + 1e-4
    assert result["log_likelihood_volume_1"] - result["log_likelihood"] == pytest.approx(2 * math.log(math.pi))
    assert result["rotation_xyzw"] == pytest.approx(q)
