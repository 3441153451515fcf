"""The paper's other figures in small, the comparison on known distributions, and the report that binds them."""

import json
import math
import re

import pytest
import torch
import trimesh
from networks import tiny_model

from aquamam.checkpoints.checkpoint import build, save_model
from aquamam.geometry.rotations import LOG_UNIFORM, geodesic_angle, random_quat
from aquamam.reproduce import comparison, figures, objects, report

# --- figures without training -----------------------------------------------------------------------------------------


def test_the_likeliest_bingham_peaks_in_the_middle_of_two_rotations():
    q = figures.two_rotations()
    posterior = figures.fit_bingham(q, 300, seed=2)
    estimate = posterior.mode[0].double()
    assert torch.rad2deg(geodesic_angle(q, estimate)).tolist() == pytest.approx([55, 55], abs=0.5)
    assert float(posterior.log_prob(estimate[None])) > float(posterior.log_prob(q[:, None]).max())


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("unimodal --steps 20", "never observed"),
        ("hemisphere", "0.159"),
        ("constraint", "0.7141"),
        ("throughput --rounds 1 --level 0", "52x"),
    ],
)
def test_experiments_without_training_write_their_files(tmp_path, prints, arguments, said):
    name = arguments.split()[0]
    assert said in prints("reproduce", *arguments.split(), "--out", tmp_path)
    result = json.loads((tmp_path / f"{name}.json").read_text())
    assert result["section"]["name"] == name
    assert all((tmp_path / figure["file"]).stat().st_size > 10_000 for figure in result["section"]["figures"])
    if name == "hemisphere":
        assert result["expected_mean_density"] == pytest.approx(0.154, abs=5e-4)
        assert abs(result["mean_density"] - result["expected_mean_density"]) < 4 * result["standard_error"]
        assert result["mean_density_cut_bins"] == pytest.approx(1 / (2 * math.pi), abs=0.01)
    if name == "throughput":
        assert result["ratio"].keys() == {"likelihood", "prediction"}
        assert result["grid"] == 72


# --- distributions of known density -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def targets() -> dict[str, comparison.Target]:
    return comparison.targets()


@pytest.mark.parametrize("name", ["peak", "cone", "cube", "line"])
def test_known_densities_integrate_to_one_and_match_their_draws(targets, name):
    target, generator = targets[name], torch.Generator().manual_seed(0)
    # half draws, half uniform rotations: 2 p / (p + u) has mean one if p is normalised and the draws follow it
    q = torch.cat([target.sample(10_000, generator), random_quat((10_000, 1), generator=generator)]).double()
    p = target.density.log_prob(q)[:, 0]
    weight = 2 * torch.sigmoid(p - LOG_UNIFORM)
    assert abs(float(weight.mean()) - 1) < 4 * float(weight.std()) / math.sqrt(len(q)) + 1e-3
    # and u / (p + u), the other half, tells of the draws alone
    inside, outside = torch.sigmoid(LOG_UNIFORM - p)[:10_000], torch.sigmoid(p - LOG_UNIFORM)[10_000:]
    assert float(inside.mean()) == pytest.approx(float(outside.mean()), abs=0.01)


@pytest.mark.parametrize("name", ["cone", "cube", "line"])
def test_exact_draws_are_judged_good_and_collapsed_ones_bad(targets, name):
    target = targets[name]
    good = target.judge(target.sample(4000, torch.Generator().manual_seed(1)))
    assert good["covered"] == 1
    assert good["total_variation"] < 0.08
    assert good["stray"] < 0.01
    bad = target.judge(target.anchors[0][:1].expand(4000, 1, 4))
    assert bad["covered"] < 0.05
    assert bad["total_variation"] > 0.9


def test_the_toy_is_judged_viewpoint_by_viewpoint(targets):
    toy = targets["toy"]
    pairs = toy.pairs(10, 0)
    assert [len(anchors) for anchors in toy.anchors] == [1, 2, 4, 8, 16, 32]
    torch.testing.assert_close(pairs.weight.sum(0), torch.full((6,), 1 / 6).double())
    truth = toy.truth(0)["truth"]
    assert truth["covered"] > 0.98  # of 21 expected draws of a rotation ten may be missing by chance
    assert truth["stray"] == 0
    assert truth["mean_distance_deg"] < 0.1  # float32
    one = toy.judge(pairs.q[:1].expand(600, 6, 4))  # always the first: right for the first viewpoint alone
    assert one["covered"] == pytest.approx(sum(2.0**-i for i in range(6)) / 6)


@pytest.mark.parametrize("name", comparison.SYSTEMS)
def test_every_system_takes_a_step_on_the_toy(targets, name, monkeypatch):
    monkeypatch.setattr(comparison, "DRAWN", 60)
    monkeypatch.setattr(comparison, "ROTATED_LEVEL", 0)
    kind, config = comparison.SYSTEMS[name]
    small = {key: value for key, value in {"negatives": 15, "level": 1, "draws": 4}.items() if key in config}
    monkeypatch.setitem(comparison.SYSTEMS, name, (kind, {**config, **small}))
    found = comparison.fit_and_judge(name, targets["toy"], 0.01, 0)
    assert found["steps"] >= 1
    assert math.isfinite(found["log_likelihood"])


def test_the_comparison_page_has_a_row_for_every_system(tmp_path, monkeypatch, prints):
    for name, size in (("HELD_OUT", 50), ("DRAWN", 50), ("POOL", 2000)):
        monkeypatch.setattr(comparison, name, size)
    page, systems = tmp_path / "page.md", ["Bingham", "classification"]
    arguments = ["reproduce", "comparison", "--out", tmp_path, "--seconds", 0.05, "--page", page]
    arguments += ["--systems", *systems, "--distributions", "peak", "point", "toy"]
    prints(*arguments)
    assert all(page.read_text().count(f"| {name} |") == 3 for name in systems)
    result = json.loads((tmp_path / "comparison.json").read_text())
    found = result["distributions"]["peak"]["systems"]["classification"]
    assert found["log_likelihood"] <= found["ceiling"]
    assert result["distributions"]["point"]["entropy"] is None
    prints(*arguments)  # nothing is run again
    assert json.loads((tmp_path / "comparison.json").read_text()) == result


# --- trained models, throughput, the report ---------------------------------------------------------------------------


def test_reproduce_cylinder_evaluates_and_draws_a_checkpoint(tmp_path, prints, refuses):
    path, out = tmp_path / "tiny.safetensors", tmp_path / "out"
    save_model(tiny_model(image_size=32), path, {"data": {"objects": [{"name": "cylinder"}]}})
    assert "7.24" in prints("reproduce", "cylinder", "--model", path, "--out", out, "--images", 4)
    result = json.loads((out / "cylinder.json").read_text())
    assert result["mean_log_likelihood"] < result["ceiling"]
    assert result["symmetries"] == {"cylinder": "known"}
    assert (out / "cylinder.png").stat().st_size > 10_000
    assert "not on the die" in refuses("reproduce", "die", "--model", path, "--out", out)  # it is of another object


def test_reproduce_die_shows_the_papers_mesh_and_ipdf_on_the_same_renders(tmp_path, prints, refuses):
    mesh, ours, other = tmp_path / "cube.stl", tmp_path / "ours.safetensors", tmp_path / "ipdf.safetensors"
    trimesh.creation.box((1, 2, 3)).export(mesh)
    shown = {"name": "cube", "mesh": objects.shown_mesh("die", str(mesh)).hash}
    save_model(tiny_model(image_size=32), ours, {"data": {"objects": [shown]}, "hours": 0.5})
    small = {"encoder": "stem", "image_size": 32, "stem": (4, 8), "stem_blocks": (0, 0), "width": 8}
    save_model(build("ipdf", {**small, "dim": 16, "heads": 2, "layers": 1, "hidden": 16}), other)
    command = ["reproduce", "die", "--mesh", mesh, "--out", tmp_path / "out", "--images", 3, "--level", 1]
    told = prints(*command, "--model", ours, "--ipdf", other, "--grid-images", 2)
    assert "14.01" in told
    assert "576 rotations" in told
    result = json.loads((tmp_path / "out" / "die.json").read_text())
    assert result["ipdf"]["ceiling"] == pytest.approx(math.log(576 / math.pi**2))
    assert "kind aquamam" in refuses(*command, "--model", ours, "--ipdf", ours)
    assert "not on the die" in refuses(*command, "--model", "die")  # it is of another mesh


def test_the_report_is_one_page_that_loads_nothing(tmp_path, prints):
    sections = report.bind(tmp_path, {"constraint": figures.constraint, "hemisphere": figures.hemisphere})
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r"(src|href)=[\"']?(https?:)?//", page)
    assert page.count("data:image/png;base64,") == 2
    assert "All in one table" in page
    assert report.bind(tmp_path, {"hemisphere": pytest.fail}, keep=True) == sections[1:]  # it is not run again
    assert "0.7141" in prints("reproduce", "all", "--out", tmp_path, "--only", "constraint")
