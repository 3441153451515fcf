"""The paper's experiments in small: their data, their ceilings, and what fitting and judging promise."""

import json
import math
import os
import signal
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.spatial.transform import Rotation

from aquamam.baselines.ipdf import IPDF, IPDFConfig
from aquamam.baselines.mog import AQuaMaMMoG
from aquamam.checkpoints.checkpoint import load
from aquamam.cli.main import main
from aquamam.errors import InputError
from aquamam.reproduce import toy_demo as demo
from aquamam.reproduce import hemisphere
from aquamam.reproduce import judging
from aquamam.reproduce import peak
from aquamam.reproduce import toy
from aquamam.reproduce.fit_pairs import FAST, PAPER, BaselineFit, Fit, FitConfig, warm_up_and_decay
from aquamam.reproduce.pairs import Pairs, Sentences, _token_log_probs
from aquamam.reproduce.results import write_result
from aquamam.reproduce.toy_others import MOG_MODEL
from aquamam.network.model import AQuaMaM, ModelConfig
from aquamam.training.presets import model_config
from aquamam.geometry.rotations import canonical, random_quat

TINY = ModelConfig(
    bins=200, chart="hemisphere", density="paper", dim=32, heads=4, layers=2, hidden=64, embedding="category", tokens=4
)
STYLES = pytest.mark.parametrize(
    ("chart", "density"), [("hemisphere", "paper"), ("hemisphere", "cells"), ("atlas", "cells")]
)


def make(config: ModelConfig = TINY, pairs: Pairs | None = None, seed: int = 0) -> tuple[AQuaMaM, Sentences]:
    torch.manual_seed(seed)
    pairs = pairs or toy.toy_pairs()
    model = AQuaMaM(replace(config, categories=pairs.categories))
    return model, Sentences(pairs, model.cells)


@pytest.fixture(scope="module")
def learned() -> tuple[AQuaMaM, Sentences, Fit]:
    # with so few bins the paper's density would show the network other values in sampling than in training
    model, sentences = make(replace(TINY, density="cells"))
    fit = Fit(model, sentences, replace(FAST, steps=500))
    fit.run()
    return model.eval(), sentences, fit


# --- data and ceilings ------------------------------------------------------------------------------------------------


def test_toy_rotations_are_those_that_scipy_draws_after_seed_2010():
    pairs = toy.toy_pairs()
    np.random.seed(2010)  # noqa: NPY002
    for i in range(6):
        expected = canonical(torch.from_numpy(np.atleast_2d(Rotation.random(2**i).as_quat())))
        assert torch.allclose(pairs.of(i), expected, atol=1e-12)
    assert len(pairs.q) == 63
    assert float(pairs.weight.sum()) == pytest.approx(1)
    assert all(float(pairs.weight[pairs.category == i].sum()) == pytest.approx(1 / 6) for i in range(6))


def test_toy_ceiling_is_the_papers_log_likelihood():
    sentences = Sentences(toy.toy_pairs(), model_config("toy").cells)
    assert sentences.ceiling() == pytest.approx(27.1229, abs=5e-5)
    assert -float(sentences.mean(sentences.best())) == pytest.approx(2.5 * math.log(2))


def test_rotations_that_share_a_cell_share_its_probability_in_the_ceiling():
    q = random_quat((2,), generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    near = q[:1] + 1e-7
    pairs = Pairs.uniform([torch.cat([q, near / near.norm()])])
    best = Sentences(pairs, replace(TINY, density="cells").cells).best().exp()
    assert best.tolist() == pytest.approx([2 / 3, 1 / 3, 2 / 3])


def test_peak_rotation_explains_the_papers_value():
    sentences = Sentences(Pairs.uniform([peak.peak_rotation()[None]]), model_config("toy").cells)
    assert sentences.ceiling() == pytest.approx(29.51, abs=1e-3)


# --- the fast likelihood ----------------------------------------------------------------------------------------------


@STYLES
def test_fast_log_probs_and_gradients_are_those_of_the_posterior(chart, density):
    model, sentences = make(replace(TINY, chart=chart, density=density))
    pairs = sentences.pairs
    coefficients = torch.randn(len(pairs.q), generator=torch.Generator().manual_seed(1))
    fast = sentences.log_probs(model) + sentences.log_factor
    (coefficients * fast).sum().backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    slow = torch.cat([model(torch.tensor([i])).log_prob(pairs.of(i)[:, None])[:, 0] for i in range(6)])
    (coefficients * slow).sum().backward()
    assert torch.allclose(fast, slow, atol=1e-4)
    for name, p in model.named_parameters():
        assert torch.allclose(gradients[name], p.grad, atol=1e-3), name


def test_expected_loss_is_the_mean_over_a_replicated_batch():
    model, sentences = make()
    pairs = sentences.pairs
    copies = 2 ** (5 - pairs.category)  # the paper's way to the limit of infinitely many samples
    category, q = pairs.category.repeat_interleave(copies), pairs.q.repeat_interleave(copies, 0)
    assert len(q) == 6 * 32
    with torch.no_grad():
        replicated = model(category).log_prob(q).mean()
        expected = sentences.mean(sentences.log_probs(model) + sentences.log_factor)
    assert float(expected) == pytest.approx(float(replicated), abs=1e-4)


def test_sampled_batches_are_functions_of_seed_and_step_with_the_right_mean():
    model, sentences = make()
    fit = Fit(model, sentences, FitConfig(batches="sampled", seed=4))
    batches = torch.stack([fit._weights(step) for step in range(2000)])
    assert torch.allclose(batches.sum(1), torch.ones(2000))
    assert torch.equal(batches[7], Fit(model, sentences, FitConfig(batches="sampled", seed=4))._weights(7))
    assert not torch.equal(batches[7], Fit(model, sentences, FitConfig(batches="sampled", seed=5))._weights(7))
    weight = sentences.pairs.weight.float()
    error = (batches.mean(0) - weight) / (weight * (1 - weight) / (128 * 2000)).sqrt()
    assert float(error.abs().max()) < 4.5


# --- fitting ----------------------------------------------------------------------------------------------------------


def test_a_tiny_toy_learns_to_its_ceiling(learned):
    model, sentences, fit = learned
    with torch.no_grad():
        log_likelihood = float(sentences.mean(sentences.log_probs(model) + sentences.log_factor))
    assert sentences.ceiling() - 0.01 < log_likelihood <= sentences.ceiling() + 1e-4
    assert fit.curve[0] > 10
    assert len(fit.curve) == 500


@pytest.mark.parametrize("batches", ["expected", "sampled"])
def test_a_resumed_fit_equals_an_uninterrupted_one(tmp_path, monkeypatch, batches):
    config = FitConfig(steps=12, batches=batches)
    whole_model, sentences = make()
    whole = Fit(whole_model, sentences, config)
    whole.run()

    state = tmp_path / "state.safetensors"
    stopped = Fit(make()[0], sentences, config, state)
    step = stopped.step

    def press_ctrl_c(number: int) -> float:
        if number == 4:
            os.kill(os.getpid(), signal.SIGINT)
        return step(number)

    monkeypatch.setattr(stopped, "step", press_ctrl_c)
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        stopped.run()
    assert len(stopped.curve) == 5  # the step goes to its end
    assert signal.getsignal(signal.SIGINT) is before

    model, _ = make(seed=99)  # other weights: everything must come from the state
    resumed = Fit(model, sentences, config, state)
    resumed.run()
    assert resumed.curve == whole.curve
    assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), whole_model.state_dict().values()))
    with pytest.raises(InputError, match="other settings"):
        Fit(model, sentences, replace(config, lr=1e-3), state).run()


def test_the_papers_schedule_halves_on_plateaus_and_stops_at_the_second_idle_one():
    model, sentences = make()
    fit = Fit(model, sentences, PAPER)
    for nll in [5.0, 4.0, *[4.0] * 5]:
        fit._look_for_plateau(nll)
    assert fit.lr == pytest.approx(PAPER.lr / 2)
    fit._look_for_plateau(3.0)
    for nll in [3.0] * 5:
        fit._look_for_plateau(nll)
    assert not fit.finished
    for nll in [3.0] * 5:
        fit._look_for_plateau(nll)
    assert fit.lr == pytest.approx(PAPER.lr / 8)
    assert fit.finished


def test_the_fast_schedule_warms_up_and_decays():
    rates = [warm_up_and_decay(i / 1000) for i in range(1001)]
    assert max(rates) == pytest.approx(rates[100]) == pytest.approx(1)
    assert rates[-1] == pytest.approx(0.01)
    assert all(a < b for a, b in pairwise(rates[:101]))
    assert all(a > b for a, b in pairwise(rates[100:]))


# --- judging samples --------------------------------------------------------------------------------------------------


def test_samples_of_a_learned_model_match_the_truth(learned):
    model, sentences, _ = learned
    judged = judging.judge(sentences.pairs, toy.draw(model, sentences, 6000, seed=1))
    assert judged["samples"] == sum(row["samples"] for row in judged["viewpoints"]) == 6000
    assert judged["wrong_sentences"] < 30
    assert judged["mean_distance_deg"] < 3.5  # the first rotation is near 180 degrees, where cells are wide
    assert all(row["p_value"] > 1e-3 for row in judged["viewpoints"])
    with torch.no_grad():
        exact = toy.exact_shares(sentences, sentences.log_probs(model))
    assert all(row["exact_total_variation"] < 0.01 and 0 <= row["stray"] + 1e-6 < 0.01 for row in exact)


def test_perfect_samples_are_judged_perfect():
    pairs = toy.toy_pairs()
    category = pairs.category.repeat(3)
    judged = judging.judge(pairs, judging.Drawn(category, -pairs.q.repeat(3, 1), torch.zeros(189, dtype=torch.bool)))
    assert judged["mean_distance_deg"] == pytest.approx(0, abs=1e-5)
    assert judged["wrong_sentences"] == 0
    for i, row in enumerate(judged["viewpoints"]):
        assert row["counts"] == [3] * 2**i
        assert row["total_variation"] == 0
        assert row["p_value"] == pytest.approx(1)


def test_lopsided_samples_are_caught():
    even, lopsided = ([500, 500, 500, 500], [650, 450, 450, 450])
    random = np.random.default_rng(0)
    assert judging.compare_shares(np.array(even), random)["p_value"] == pytest.approx(1)
    found = judging.compare_shares(np.array(lopsided), random)
    assert found["p_value"] < 1e-6
    assert found["total_variation"] == pytest.approx(0.075)
    assert found["total_variation"] > 1.5 * found["total_variation_of_truth"]


# --- whole experiments ------------------------------------------------------------------------------------------------


@pytest.fixture
def small(monkeypatch) -> None:
    monkeypatch.setattr(toy, "model_config", lambda name: TINY)
    monkeypatch.setattr(peak, "model_config", lambda name: TINY)


def test_reproduce_toy_writes_its_numbers_figures_and_model(small, tmp_path, capsys):
    arguments = ["reproduce", "toy", "--out", str(tmp_path), "--steps", "30", "--samples", "600", "--seed", "3"]
    assert main(arguments) == 0
    assert "log-likelihood" in capsys.readouterr().out
    result = json.loads((tmp_path / "toy.json").read_text())
    assert {"log_likelihood", "ceiling", "wrong_sentences", "samples", "mean_distance_deg", "seconds"} <= result.keys()
    assert {"steps", "seed", "threads", "parameters", "viewpoints"} <= result.keys()
    assert {"total_variation", "total_variation_of_truth", "p_value"} <= result["viewpoints"][0].keys()
    assert (result["samples"], result["steps"], result["seed"]) == (600, 30, 3)
    assert (tmp_path / "toy_proportions.png").stat().st_size > 10_000
    assert (tmp_path / "toy_curve.png").stat().st_size > 10_000
    assert not (tmp_path / "state.safetensors").exists()
    model, pairs = load(tmp_path / "model.safetensors"), toy.toy_pairs()
    with torch.no_grad():
        log_p = model(pairs.category).log_prob(pairs.q)
    assert float((pairs.weight * log_p).sum()) == pytest.approx(result["log_likelihood"], abs=1e-4)


def test_reproduce_peak_reaches_its_ceiling_in_both_measures(small, tmp_path, capsys):
    q = random_quat(generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    assert (
        main(["reproduce", "peak", "--out", str(tmp_path), "--steps", "300", "--rotation", *map(str, q.tolist())]) == 0
    )
    assert "volume 1" in capsys.readouterr().out
    result = json.loads((tmp_path / "peak.json").read_text())
    assert result["ceiling"] - 0.01 < result["log_likelihood"] <= result["ceiling"] + 1e-4
    assert result["log_likelihood_volume_1"] - result["log_likelihood"] == pytest.approx(2 * math.log(math.pi))
    assert result["rotation_xyzw"] == pytest.approx(q.tolist())


@pytest.mark.parametrize("bins", [1, 2, 7, 50])
def test_areas_of_the_cells_of_the_disk_sum_to_pi(bins):
    areas = hemisphere.cell_areas(bins)
    assert areas.sum() == pytest.approx(math.pi)
    assert areas.max() <= (2 / bins) ** 2 + 1e-12
    random = np.random.default_rng(0).uniform(-1, 1, (200_000, 2))
    counts = np.zeros((bins, bins))
    np.add.at(counts, hemisphere.bin_of(random[np.hypot(*random.T) <= 1], bins), 4 / 200_000)
    assert np.abs(counts - areas).max() < 5 * math.sqrt((2 / bins) ** 2 * 4 / 200_000)


def test_reproduce_hemisphere_gives_the_papers_mean_density(tmp_path, capsys):
    assert main(["reproduce", "hemisphere", "--out", str(tmp_path)]) == 0
    assert "0.159" in capsys.readouterr().out
    result = json.loads((tmp_path / "hemisphere.json").read_text())
    assert result["expected_mean_density"] == pytest.approx(0.154, abs=5e-4)
    assert abs(result["mean_density"] - result["expected_mean_density"]) < 4 * result["standard_error"]
    assert result["mean_density_cut_bins"] == pytest.approx(1 / (2 * math.pi), abs=0.01)
    assert (tmp_path / "hemisphere.png").stat().st_size > 10_000


def test_demo_tells_of_every_viewpoint(tmp_path, capsys):
    assert main(["demo", "--toy", "--out", str(tmp_path), "--steps", "40"]) == 0
    told = capsys.readouterr().out
    assert all(f"viewpoint {i}:" in told for i in range(6))
    assert (tmp_path / "demo.png").stat().st_size > 10_000
    result = json.loads((tmp_path / "demo.json").read_text())
    assert result["log_likelihood"] > 0
    assert result["bins"] == demo.MODEL.bins


@pytest.mark.parametrize(
    "bad", [["--steps", "0"], ["--samples", "-1"], ["--systems", "oracle"], ["--lr", "nan"], ["--threads", "0"]]
)  # fmt: skip
def test_bad_settings_are_told_in_one_line(small, tmp_path, capsys, bad):
    assert main(["reproduce", "toy", "--out", str(tmp_path), *bad]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    assert not (tmp_path / "toy.json").exists()


def test_results_are_valid_json_even_when_a_number_is_not_finite(tmp_path):
    path = write_result(tmp_path, "x", {"a": math.inf, "b": [1.5, float("nan")]})
    assert json.loads(path.read_text()) == {"a": None, "b": [1.5, None]}


@pytest.mark.parametrize("scale", [1.0, 300.0])  # at the larger one some labels have probabilities below 1e-38
def test_the_toys_head_has_autograds_values_and_gradients(scale):
    torch.manual_seed(0)
    hidden, head = (scale * torch.randn(7, 8)).requires_grad_(), torch.nn.Linear(8, 31)
    first_legal = torch.tensor([0, 3, 9, 0, 5, 14, 2])
    rows, labels = torch.tensor([0, 0, 1, 2, 3, 4, 5, 6, 6]), torch.tensor([0, 30, 3, 21, 7, 25, 15, 4, 4])
    weight = torch.rand(len(rows))
    own = _token_log_probs(hidden, head, first_legal, rows, labels)
    bins = torch.arange(31)
    illegal = (bins < first_legal[:, None]) | (bins > 30 - first_legal[:, None])
    plain = head(hidden).masked_fill(illegal, -torch.inf).log_softmax(-1)[rows, labels]
    assert own.min() < (-90 if scale > 1 else 0)
    assert torch.allclose(own, plain, rtol=1e-5, atol=1e-5)
    inputs = [hidden, head.weight, head.bias]
    for mine, theirs in zip(*(torch.autograd.grad((weight * x).sum(), inputs) for x in (own, plain))):
        assert torch.allclose(mine, theirs, rtol=1e-4, atol=1e-6 * scale)


def test_fits_keep_to_their_device(monkeypatch):
    """No GPU is needed to see it: tensors without data on the device "meta" refuse to meet others."""
    import torch.distributed.tensor  # optimisers import it, and it needs the Generator that is replaced below

    monkeypatch.setattr(torch.Tensor, "unique", lambda t, return_inverse: (t, torch.arange(len(t), device=t.device)))
    monkeypatch.setattr(torch, "Generator", lambda device: SimpleNamespace(manual_seed=lambda seed: None))
    monkeypatch.setattr(torch.Tensor, "any", lambda t: False)
    for name in ("baselines.ipdf", "distribution"):  # its checks read the data
        monkeypatch.setattr(f"aquamam.{name}.as_unit_quat", lambda q: q.double())
    pairs = toy.toy_pairs()
    model = AQuaMaM(replace(model_config("toy"), bins=501, chart="atlas"))
    ipdf = IPDF(IPDFConfig(encoder="category", categories=6, negatives=15, level=1))
    fits = [
        Fit(model, Sentences(pairs, model.cells), FAST, device="meta"),
        BaselineFit(ipdf, pairs, FAST, device="meta"),
        BaselineFit(AQuaMaMMoG(MOG_MODEL), pairs, FAST, device="meta"),
    ]
    for fit in fits:
        loss = fit.loss(fit._weights(0), 0)
        loss.backward()
        assert loss.device.type == "meta"


def test_a_device_that_is_not_there_is_told(tmp_path, capsys):
    assert main(["reproduce", "peak", "--device", "cuda:77", "--out", str(tmp_path)]) == 2
    assert "--device must be one that this computer has" in capsys.readouterr().err
