"""Pictures of posteriors."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from binghams import bingham_posterior, four_fives, turns
from matplotlib.text import Text
from PIL import Image
from refusals import refused
from tables import table_posterior

from aquamam.geometry.cells import Cells
from aquamam.geometry.rotations import multiply, random_quat, rotate, rotvec_to_quat
from aquamam.plotting import THEMES, ball, known_object, make_cloud, marginals, mollweide, save
from aquamam.plotting.cloud import SAMPLE, TRUTH, UNIFORM, Cloud
from aquamam.plotting.curves import learning_curve, read_log
from aquamam.plotting.marginals import conditionals
from aquamam.plotting.mollweide import directions
from aquamam.plotting.style import density_map
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def cloud() -> Cloud:
    return make_cloud(four_fives(), truth=[0.0, 0.0, 0.0, 1.0], generator=seeded())


class Trained:
    """What the plots ask of a model."""

    def __init__(self, name: str, mesh: str):
        settings = RenderSettings(size=64, background=(10, 20, 30)).to_dict()
        self.info = {"data": {"objects": [{"name": name, "mesh": mesh}], "settings": settings}}


def texts(figure) -> str:
    return "\n".join(text.get_text() for text in figure.findobj(Text))


def test_a_cloud_is_the_papers_thousand_rotations_with_their_densities(cloud):
    assert len(cloud.q) == 1000
    assert [int((cloud.source == s).sum()) for s in (TRUTH, SAMPLE, UNIFORM)] == [1, 499, 500]
    assert np.allclose(cloud.q[0], [0, 0, 0, 1])
    assert np.linalg.norm(cloud.rotvec, axis=1).max() <= math.pi + 1e-9
    expected = four_fives().log_prob(torch.from_numpy(cloud.q)[:, None])[:, 0].numpy()
    assert np.allclose(cloud.log_density, expected, atol=1e-5)


@pytest.mark.parametrize("theme", THEMES)
def test_likelier_is_redder_and_farther_from_the_background(theme):
    rgb = density_map(THEMES[theme]["density"])(np.linspace(0, 1, 60))[:, :3]
    red_share = rgb[:, 0] / rgb.sum(1)
    assert (np.diff(red_share) > -0.02).all()
    assert red_share[-1] > red_share[0] + 0.15
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    luminance = linear @ [0.2126, 0.7152, 0.0722]  # what print and colour-blind readers see
    assert (np.diff(luminance) * (-1 if theme == "light" else 1) > 0).all()


def test_ball_and_map_number_their_points_and_explain_themselves(cloud):
    die = known_object(Trained("die", solid("die").mesh.hash))
    told = texts(ball(cloud, image=Image.new("RGB", (64, 64)), known=die, title="five.png"))
    parts = ["0: the true rotation", "499 drawn from the posterior", "500 uniform rotations", "five.png"]
    parts += [f"0 : {cloud.log_density[0]:.2f}", "redder and more opaque is likelier"]
    assert all(part in told for part in parts)
    assert "4 separate rotations" in told.replace("\n", " ")
    told = texts(mollweide(cloud, axis="y", image=Image.new("RGB", (8, 8))))
    assert all(part in told for part in ("y axis", "tilt", "to the viewer", "the true rotation", "499 drawn"))


@pytest.mark.parametrize("ending", ["png", "svg", "pdf"])
def test_figures_are_written_the_same_each_time(cloud, tmp_path, ending):
    start = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}[ending]
    files = [save(ball(cloud), tmp_path / f"{name}.{ending}", dpi=40) for name in "ab"]
    assert files[0].read_bytes().startswith(start)
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("axis", "xyz")
def test_tilt_is_the_rotation_about_the_axis(axis):
    a = torch.eye(3, dtype=torch.float64)["xyz".index(axis)]
    q = random_quat((50,), generator=seeded(), dtype=torch.float64)
    rotated = multiply(q, rotvec_to_quat(0.7 * a))
    before, after = directions(q.numpy(), axis), directions(rotated.numpy(), axis)
    assert np.allclose(before[0], after[0])
    assert np.allclose(before[1], after[1])
    assert np.allclose(np.exp(1j * (after[2] - before[2])), np.exp(0.7j))
    x, y, _ = rotate(q, a).numpy().T
    assert np.allclose(np.stack([np.cos(before[1]) * np.sin(before[0]), np.sin(before[1])]), np.stack([x, y]))


@pytest.mark.parametrize("chart", ["atlas", "hemisphere"])
@pytest.mark.parametrize("density", ["cells", "paper"])
def test_the_three_conditionals_multiply_to_the_density(chart, density):
    cells = Cells(chart, 24, density)
    posterior = table_posterior(cells, batch=1, scale=1.5)
    for q in random_quat((20,), generator=seeded(1), dtype=torch.float64)[:, None]:
        rows, chart_share = conditionals(posterior, q)
        point = cells.chart.split(q[None])
        cell = cells.locate(point)
        total = math.log(chart_share) + float(np.log(rows[np.arange(3), cell[0, 0].numpy()]).sum())
        total += float(cells.log_factor(point, cell))
        assert math.isclose(total, float(posterior.log_prob(q)), abs_tol=1e-4)
        assert np.allclose(rows.sum(1), 1)


def test_illegal_bins_have_no_probability_and_are_shaded():
    cells = Cells("hemisphere", 24)
    posterior = table_posterior(cells, batch=1)
    q = torch.tensor([[0.9, 0.3, 0.1, math.sqrt(1 - 0.91)]], dtype=torch.float64)
    rows, _ = conditionals(posterior, q)
    cell = cells.locate(cells.chart.split(q))[0]
    for step in (1, 2):
        illegal = ~cells.legal(cell[:step]).numpy()
        assert illegal.any()
        assert (rows[step][illegal] == 0).all()
    told = texts(marginals(posterior, at=q))
    assert "illegal bins" in told
    assert "the given rotation" in told
    assert "the first token drops" in texts(marginals(table_posterior(Cells("atlas", 24), batch=1)))


def test_a_models_object_is_known_by_name_and_mesh():
    die = known_object(Trained("die", solid("die").mesh.hash))
    assert die is not None
    assert die.settings.background == (10, 20, 30)
    assert die.picture([0, 0, 0, 1], 32).shape == (32, 32, 3)
    assert tuple(die.picture([0, 0, 0, 1], 32)[0, 0]) == (10, 20, 30)
    assert known_object(Trained("die", "another mesh")) is None  # someone's own die
    assert known_object(Trained("part", "x")) is None
    assert known_object(object()) is None
    assert [known_object(object(), name).axis for name in ("cylinder", "cone", "die")] == ["y", "z", "z"]


def record(i: int) -> dict:
    likelihoods = {"log_likelihood": i - 3.0, "train_log_likelihood": i - 2.8, "ceiling": 17.6}
    return {"step": 10 * i, "images": 1280 * i, "elapsed": 60.0 * i, **likelihoods}


def test_a_learning_curve_names_its_best_point_and_its_bounds(tmp_path):
    log = tmp_path / "log.jsonl"
    lines = [json.dumps(record(i)) for i in range(1, 6)]
    log.write_text("\n".join([*lines, '{"step": 60, "log_lik']))  # being written
    for source in (log, tmp_path):
        told = texts(learning_curve(read_log(source), title="die"))
        best = "best validation 2.000 after 6,400 images and 5 minutes"
        assert all(part in told for part in (best, "ceiling 17.60", "uniform", "validation"))


def test_a_broken_or_empty_log_is_told_in_one_sentence(tmp_path):
    refused("there is none", read_log, tmp_path)
    for text, told in (("", "no record yet"), (f"nonsense\n{json.dumps(record(1))}\n", "line 1")):
        (tmp_path / "log.jsonl").write_text(text)
        refused(told, read_log, tmp_path)


def test_points_beyond_every_density_are_drawn_too(tmp_path):
    cloud = make_cloud(bingham_posterior(turns(1), [1.0]), samples=20, uniform=20, generator=seeded())
    wild = replace(cloud, log_density=np.where(cloud.source == UNIFORM, -np.inf, cloud.log_density))
    assert save(ball(wild), tmp_path / "a.png", dpi=30).stat().st_size > 1000
