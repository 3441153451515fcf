"""The rest of the paper's figures in small, the other systems on the toy, the comparison, and the report that binds them."""

import json
import math
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from aquamam.baselines.ipdf import IPDF, IPDFConfig
from aquamam.baselines.mog import AQuaMaMMoG, MoGConfig
from aquamam.checkpoints.checkpoint import save_model
from aquamam.cli.main import main
from aquamam.errors import InputError
from aquamam.reproduce import analytic
from aquamam.reproduce import comparison
from aquamam.reproduce import constraint
from aquamam.reproduce import everything
from aquamam.reproduce import mog
from aquamam.reproduce import objects
from aquamam.reproduce import toy
from aquamam.reproduce import toy_others
from aquamam.reproduce import unimodal
from aquamam.reproduce.fit_pairs import BaselineFit
from aquamam.reproduce.sections import Row, Section, finish
from aquamam.network.model import AQuaMaM, ModelConfig
from aquamam.geometry.rotations import geodesic_angle

TINY_MOG = MoGConfig(encoder="category", dim=16, heads=2, layers=1, hidden=16, components=4, tokens=2)
TINY_IPDF = IPDFConfig(encoder="category", category_features=8, width=16, depth=1, negatives=15, level=1)


# --- figures without training -----------------------------------------------------------------------------------------


def test_the_likeliest_bingham_peaks_in_the_middle_of_two_rotations():
    q = unimodal.two_rotations()
    posterior, curve = unimodal.fit(q, 200, seed=1)
    estimate = posterior.mode[0].double()
    angles = torch.rad2deg(geodesic_angle(q, estimate))
    assert angles.tolist() == pytest.approx([55, 55], abs=0.5)
    assert curve[-1] < curve[0] - 3
    assert float(posterior.log_prob(estimate[None])) > float(posterior.log_prob(q[:, None]).max())


@pytest.mark.parametrize("bins", [2, 10, 64])
@pytest.mark.parametrize("first", [0.0, 0.3, 0.7, 0.999])
def test_bins_of_the_next_component_fill_the_room_that_is_left(first, bins):
    rows = constraint.bins_of_next(first, bins)
    assert len(rows) == bins // 2
    assert sum(row["width"] for row in rows) == pytest.approx(math.sqrt(1 - first**2))
    assert all(row["kind"] == "illegal" for row in rows if row["masked"])  # the mask never forbids what is possible
    assert sum(row["kind"] == "cut" for row in rows) <= 1


def test_reproduce_unimodal_and_constraint_write_their_files(tmp_path, capsys):
    assert main(["reproduce", "unimodal", "--out", str(tmp_path), "--steps", "20"]) == 0
    assert main(["reproduce", "constraint", "--out", str(tmp_path)]) == 0
    assert "0.7141" in capsys.readouterr().out
    for name in ("unimodal", "constraint"):
        assert json.loads((tmp_path / f"{name}.json").read_text())["section"]["name"] == name
        assert (tmp_path / f"{name}.png").stat().st_size > 10_000
    assert main(["reproduce", "constraint", "--out", str(tmp_path), "--qx", "1"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


# --- the toy's other systems ------------------------------------------------------------------------------------------


def test_a_baselines_expected_loss_is_the_mean_over_the_pairs():
    torch.manual_seed(0)
    pairs = toy.toy_pairs()
    model = AQuaMaMMoG(TINY_MOG)
    fit = BaselineFit(model, pairs, toy_others.CPU.mog)
    with torch.no_grad():
        each = [model(pairs.category[i : i + 1]).log_prob(pairs.q[i : i + 1]) for i in range(len(pairs.q))]
    assert fit.expected_nll() == pytest.approx(-float((pairs.weight * torch.cat(each)).sum()), rel=1e-5)


def test_a_resumed_baseline_fit_equals_an_uninterrupted_one(tmp_path):
    pairs, config = toy.toy_pairs(), replace(toy_others.CPU.ipdf, steps=6)

    def fit(state) -> BaselineFit:
        torch.manual_seed(0)
        return BaselineFit(IPDF(TINY_IPDF), pairs, config, state)

    whole = fit(None)
    whole.run()
    stopped = fit(tmp_path / "state.safetensors")
    stopped.curve = [stopped.step(0), stopped.step(1)]
    stopped.save()
    resumed = fit(tmp_path / "state.safetensors")
    resumed.run()
    assert resumed.curve == whole.curve


def test_samples_of_any_posterior_follow_the_hierarchical_model():
    torch.manual_seed(0)
    drawn = toy_others.sample(IPDF(TINY_IPDF).eval()(torch.arange(6)), 600, seed=3)
    assert len(drawn.q) == len(drawn.category) == 600
    assert np.all(np.abs(drawn.category.bincount(minlength=6).numpy() - 100) < 45)
    assert drawn.wrong is None


def test_reproduce_toy_judges_all_systems_by_one_test(tmp_path, monkeypatch, capsys):
    tiny = ModelConfig(bins=50, chart="hemisphere", density="paper", dim=16, heads=2, layers=1, hidden=16, embedding="category", tokens=2)  # fmt: skip
    monkeypatch.setattr(toy, "model_config", lambda name: tiny)
    monkeypatch.setattr(toy_others, "MOG_MODEL", TINY_MOG)
    arguments = ["--out", str(tmp_path), "--samples", "300", "--steps", "3", "--other-steps", "3", "--negatives", "15", "--level", "1"]  # fmt: skip
    assert main(["reproduce", "toy", "--systems", "aquamam", "ipdf", "mog", *arguments]) == 0
    told = capsys.readouterr().out
    assert "Reduced against the paper" in told
    assert "15 negatives" in told
    result = json.loads((tmp_path / "toy.json").read_text())
    for part in (result, result["ipdf"], result["mog"]):
        assert [len(row["counts"]) for row in part["viewpoints"]] == [1, 2, 4, 8, 16, 32]
        assert {"total_variation", "p_value"} <= part["viewpoints"][5].keys()
    assert result["ipdf"]["log_likelihood"] <= result["ipdf"]["ceiling"] == pytest.approx(math.log(576 / math.pi**2))
    assert result["ipdf"]["parameters"] == 748_545
    assert len(result["ipdf"]["reductions"]) == 3
    assert "has not converged" in told
    assert result["mog"]["ceiling"] is None
    assert sorted(path.name for path in tmp_path.glob("*state*")) == []


def test_the_papers_scale_is_told_as_no_reduction():
    assert toy_others.PAPER.ipdf_reductions == toy_others.PAPER.mog_reductions == ()
    assert len(toy_others.CPU.ipdf_reductions) == 3


def test_reproduce_mog_draws_the_appendix(tmp_path, monkeypatch):
    monkeypatch.setattr(toy_others, "MOG_MODEL", TINY_MOG)
    scale = replace(toy_others.CPU, mog=replace(toy_others.CPU.mog, steps=2))
    result = mog.run(tmp_path, scale, samples=100, shown=50)
    assert 0 <= result["unimodal"]["mean_distance_deg"] <= 180
    assert all((tmp_path / figure["file"]).exists() for figure in result["section"]["figures"])


# --- distributions of known density -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["peak", "cone", "cube", "line"])
def test_analytic_densities_integrate_to_one_and_match_their_draws(name):
    truth = analytic.analytic(name)
    generator = torch.Generator().manual_seed(0)
    from aquamam.geometry.rotations import LOG_UNIFORM, random_quat

    # an even mixture of draws and uniform rotations: 2 p / (p + u) has mean one if the density is normalised and the draws follow it
    q = torch.cat([truth.sample(10_000, generator), random_quat((10_000,), generator=generator)]).double()
    p = truth.truth.log_prob(q[:, None])[:, 0]
    weight = 2 * torch.sigmoid(p - LOG_UNIFORM)
    assert abs(float(weight.mean()) - 1) < 4 * float(weight.std()) / math.sqrt(len(q)) + 1e-3
    # and u / (p + u), the other half, tells of the draws alone
    inside = float((torch.sigmoid(LOG_UNIFORM - p)[:10_000]).mean())
    outside = float((torch.sigmoid(p - LOG_UNIFORM)[10_000:]).mean())
    assert inside == pytest.approx(outside, abs=0.01)


def test_the_peaks_entropy_is_that_of_a_gaussian_of_its_spread():
    entropy, error = analytic.analytic("peak").entropy(20_000)
    gaussian = 1.5 * math.log(2 * math.pi * math.e) + 3 * math.log(
        analytic.SPREAD / 2
    )  # a quaternion moves half the angle
    assert entropy == pytest.approx(gaussian, abs=0.03)
    assert 0 < error < 0.02


@pytest.mark.parametrize("name", ["cone", "cube", "line"])
def test_exact_draws_are_judged_good_and_collapsed_ones_bad(name):
    truth = analytic.analytic(name)
    good = comparison.judge(truth, truth.sample(4000, torch.Generator().manual_seed(1)))
    assert good["covered"] == 1
    assert good["total_variation"] < 0.08
    assert good["stray"] < 0.01
    bad = comparison.judge(truth, truth.anchors[:1].expand(4000, 4))
    assert bad["covered"] < 0.05
    assert bad["total_variation"] > 0.9


def test_the_toy_is_judged_viewpoint_by_viewpoint():
    task = comparison.task("toy")
    assert (task.categories, task.modes) == (6, 63)
    torch.testing.assert_close(task.drawn.weights.sum(0), torch.ones(6))
    truth = task.truth(0)["truth"]
    assert truth["covered"] > 0.98  # of 21 expected draws of a rotation ten may be missing by chance
    assert truth["stray"] == 0
    assert truth["mean_distance_deg"] < 0.1  # float32
    one = task.judge(task.drawn.q[:1].expand(600, 6, 4))  # always the first: right for the first viewpoint alone
    assert one["covered"] == pytest.approx(sum(2.0**-i for i in range(6)) / 6)


@pytest.mark.parametrize("name", comparison.SYSTEMS)
def test_every_system_takes_a_step_on_the_toy(name, monkeypatch):
    monkeypatch.setattr(comparison, "DRAWN", 60)
    monkeypatch.setattr(comparison, "TURNED_LEVEL", 0)
    kind, config = comparison.SYSTEMS[name]
    small = {key: value for key, value in {"negatives": 15, "level": 1, "draws": 4}.items() if key in config}
    monkeypatch.setitem(comparison.SYSTEMS, name, (kind, {**config, **small}))
    found = comparison.fit_and_judge(name, comparison.task("toy"), 0.01, 0)
    assert found["steps"] >= 1
    assert math.isfinite(found["log_likelihood"])


def test_the_comparison_page_has_a_row_for_every_system(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(comparison, "HELD_OUT", 50)
    monkeypatch.setattr(comparison, "DRAWN", 50)
    systems = ["Bingham", "classification"]
    page = tmp_path / "page.md"
    arguments = ["reproduce", "comparison", "--out", str(tmp_path), "--seconds", "0.05", "--page", str(page)]
    assert main([*arguments, "--systems", *systems, "--distributions", "peak", "point", "toy"]) == 0
    capsys.readouterr()
    text = page.read_text()
    assert all(text.count(f"| {name} |") == 3 for name in systems)
    result = json.loads((tmp_path / "comparison.json").read_text())
    found = result["distributions"]["peak"]["systems"]["classification"]
    assert found["log_likelihood"] <= found["ceiling"]
    assert result["distributions"]["point"]["entropy"] is None
    assert main([*arguments, "--systems", "oracle"]) == 2


# --- trained models, throughput, the report ---------------------------------------------------------------------------


def test_an_object_without_a_model_tells_how_to_train_one(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(objects, "bundled", list)
    assert main(["reproduce", "die", "--out", str(tmp_path)]) == 2
    assert "aquamam train die-small" in capsys.readouterr().err


def test_reproduce_cylinder_evaluates_and_draws_a_checkpoint(tmp_path, capsys):
    torch.manual_seed(0)
    model = AQuaMaM(ModelConfig(bins=20, dim=16, heads=2, layers=1, hidden=16, embedding="patches", image_size=32, patch_size=16))  # fmt: skip
    path = tmp_path / "tiny.safetensors"
    save_model(model, path, {"data": {"objects": [{"name": "cylinder"}]}})
    out = tmp_path / "out"
    assert main(["reproduce", "cylinder", "--model", str(path), "--out", str(out), "--images", "4"]) == 0
    assert "7.24" in capsys.readouterr().out
    result = json.loads((out / "cylinder.json").read_text())
    assert result["mean_log_likelihood"] < result["ceiling"]
    assert result["symmetries"] == {"cylinder": "known"}
    assert (out / "cylinder.png").stat().st_size > 10_000
    assert main(["reproduce", "die", "--model", str(path), "--out", str(out)]) == 2  # it is of another object
    assert "not on the die" in capsys.readouterr().err


def test_throughput_tells_both_ratios(tmp_path, capsys):
    assert main(["reproduce", "throughput", "--out", str(tmp_path), "--rounds", "1", "--timed-level", "0"]) == 0
    assert "52x" in capsys.readouterr().out
    result = json.loads((tmp_path / "throughput.json").read_text())
    assert result["ratio"].keys() == {"likelihood", "prediction"}
    assert result["grid"] == 72


def test_the_report_is_one_page_that_loads_nothing(tmp_path):
    def without_model(out):
        raise InputError("there is no model; train one.")

    def with_figure(out):
        rows = (Row(what="<b>LL</b>", here="1.00", paper="2.00", ceiling="3.00"),)
        constraint.run(out)
        section = Section(name="x", title="A & B", rows=rows, reductions=("fewer steps",))
        return finish(out, section, {"value": math.inf})

    runs = {"constraint": constraint.run, "x": with_figure, "die": without_model}
    report = everything.run(tmp_path, runs, optional=("die",))
    page = report.page.read_text()
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)
    assert page.count("data:image/png;base64,") == 1
    assert "A &amp; B" in page
    assert "&lt;b&gt;LL" in page
    assert "fewer steps" in page
    assert "die was left out: there is no model" in page
    kept = everything.run(tmp_path, {"x": without_model}, keep=True)
    assert [section.name for section in kept.sections] == ["x"]
    with pytest.raises(InputError, match="no model"):
        everything.run(tmp_path / "other", {"die": without_model})
    with pytest.raises(InputError, match="experiments are"):
        everything.run(tmp_path, runs, only=["nonsense"])
