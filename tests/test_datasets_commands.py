"""`aquamam render` and `aquamam data inspect`, from their arguments to files and sentences."""

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from refusals import refused
from render_small import contents

from aquamam.cli.render import parse_symmetry
from aquamam.data import StoredDataset, open_dataset
from aquamam.data.summary import spread
from aquamam.geometry.symmetry import SymmetryGroup

OBJ = "v 0 0 0\nv 1 0 0\nv 0 1 0\nv 0 0 1\nf 1 3 2\nf 1 2 4\nf 1 4 3\nf 2 3 4\n"
SIZES = ["--size", "16", "--split", "train=9,test=4"]


@pytest.fixture
def small(tmp_path, prints) -> Path:
    prints("render", "die", "cube", "--out", tmp_path / "set", "--workers", 1, *SIZES)
    return tmp_path / "set"


def test_render_writes_what_was_asked_for_once(small, prints):
    data = StoredDataset(small, "train")
    assert len(data) == 9
    assert data.image_size == (16, 16)
    assert data.classes == ("die", "cube")
    assert data.symmetry("cube").order == 24
    assert data.describe()["seed"] == 0
    again = prints("render", "die", "cube", "--out", small, *SIZES)
    assert "13 images of die, cube at 16 px, 0 rendered now" in again


def test_a_mesh_file_with_a_stated_symmetry(tmp_path, prints):
    (tmp_path / "wedge.obj").write_text(OBJ)
    out, sheet = tmp_path / "set", tmp_path / "sheets" / "first.png"
    options = "--symmetry C3:y --size 100 --count 5 --workers 1 --background random"
    prints("render", tmp_path / "wedge.obj", "--out", out, "--preview", sheet, *options.split())
    data = StoredDataset(out, "train")
    assert data.classes == ("wedge",)
    assert data.symmetry("wedge").order == 3
    assert data.describe()["encoding"] == "png"
    assert "wedge.obj" in data.describe()["objects"][0]["source"]
    assert Image.open(sheet).size[0] > 8 * 100


def test_preview_alone_writes_no_data_set(tmp_path, prints):
    prints("render", "die", "--preview", tmp_path / "sheet.png", "--size", 32)
    assert [p.name for p in tmp_path.iterdir()] == ["sheet.png"]


def test_torchrun_and_shares_split_the_work(tmp_path, small, monkeypatch, prints):
    arguments = ["render", "die", "cube", "--out", tmp_path / "parts", *SIZES, "--workers", 1]
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    prints(*arguments)
    refused(r"split train of .* has 0 of its 1 shards", StoredDataset, tmp_path / "parts", "train")
    monkeypatch.delenv("RANK")
    monkeypatch.delenv("WORLD_SIZE")
    prints(*arguments, "--shard", "1/2")
    assert contents(tmp_path / "parts") == contents(small)


def test_inspect_prints_what_is_there_and_a_sheet(small, tmp_path, prints):
    text = prints("data", "inspect", small, "--out", tmp_path / "sheet.png")
    for words in ("splits train, test", "9, each with 1 true rotation", "16x16 px", "cube: 4, symmetry 24"):
        assert words in text
    assert Image.open(tmp_path / "sheet.png").size[0] == 8 * 100 + 4


def test_inspect_counts_unreadable_images(tmp_path, prints):
    Image.new("RGB", (8, 4)).save(tmp_path / "a.png")
    (tmp_path / "b.png").write_bytes(b"no image")
    rows = ["image,class,q1,q2,q3,q4", "a.png,nut,1,0,0,0", "b.png,bolt,1,0,0,0", "c.png,bolt,1,0,0,0"]
    (tmp_path / "poses.csv").write_text("\n".join(rows))
    arguments = ["data", "inspect", tmp_path, "--rotation", "wxyz:q1,q2,q3,q4", "--camera", "opencv"]
    assert "4x8 px (1 read, 2 unreadable)" in prints(*arguments, "--out", tmp_path / "sheet.png")
    (summary,) = json.loads(prints(*arguments, "--json", "--check"))
    assert summary["classes"] == {"bolt": 2, "nut": 1}
    assert summary["rotations"]["repeated"] == 2
    assert np.allclose(np.abs(summary["rotations"]["mean"]), [1, 0, 0, 0])  # diag(1, -1, -1)
    assert summary["about"]["rotation"] == "wxyz"
    assert open_dataset(tmp_path, rotation="wxyz:q1,q2,q3,q4", size=8)[0].image.shape == (8, 8, 3)


def test_spread_tells_uniform_from_concentrated():
    rng = np.random.default_rng(0)
    q = rng.normal(size=(5000, 4))
    q /= np.linalg.norm(q, axis=1, keepdims=True)
    uniform = spread(q)
    assert uniform["uniform_p"] > 1e-3
    assert np.allclose(uniform["eigenvalues"], 0.25, atol=0.02)
    narrow = q * 0.05 + [0, 0, 0, 1]
    narrow /= np.linalg.norm(narrow, axis=1, keepdims=True)
    found = spread(narrow)
    assert found["uniform_p"] < 1e-9
    assert np.allclose(found["mean"], [0, 0, 0, 1], atol=1e-2)
    assert found["median_deg"] < 10


def test_symmetries_by_name_or_file(tmp_path):
    orders = {"none": 1, "C4": 4, "D3:x": 6, "D2:y": 4, "cone:y": np.inf, "tetrahedral": 12, "icosahedral": 60}
    for name, order in orders.items():
        assert parse_symmetry(name).order == order
    assert len(parse_symmetry("cylinder").elements) == 2
    path = tmp_path / "group.json"
    path.write_text(json.dumps(SymmetryGroup.cyclic(5).to_dict()))
    assert parse_symmetry(str(path)).order == 5
    path.write_text(json.dumps(SymmetryGroup.cyclic(2).to_bop()))
    assert parse_symmetry(str(path)).order == 2
    path.write_text("{")
    refused("must name a JSON file with one", parse_symmetry, str(path))
    for wrong in ("C", "D2:w", "octahedral:x", "sphere"):
        refused("must be a name such as none, C4", parse_symmetry, wrong)
