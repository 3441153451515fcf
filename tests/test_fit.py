"""From a mesh to a model in one command: the folder is whole, a kill loses nothing, and bad parts are told in one
sentence."""

import json
import math
import re
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from browsers import DESKTOP, PHONE, Visit
from parts import box, joined, moved, polygon, prism, written
from PIL import Image
from refusals import refused
from scipy.spatial.transform import Rotation

import aquamam
from aquamam.cli.main import main
from aquamam.data import PhotoDataset, RenderedDataset
from aquamam.fit import pipeline as fitting
from aquamam.fit.part import check_part, fresh_renders, open_part, placed
from aquamam.fit.stages import Stages
from aquamam.geometry.rotations import multiply, rotvec_to_quat
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.network.model import ModelConfig
from aquamam.network.poses import part_of
from aquamam.pages import fit as fitpage
from aquamam.plotting import known_object
from aquamam.rendering.meshes import FIT_RADIUS, read_mesh, write_mesh
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid
from aquamam.shape.group_fit import NONE, SPHERE
from aquamam.shape.matching import Difference, Tolerance
from aquamam.shape.symmetries import Symmetries
from aquamam.training.config import TrainConfig

TINY = [
    "--size", "16", "--steps", "6", "--held-out", "80", "--views", "3", "--quiet",
    *(word for setting in (
        "stem=[8,16]", "stem_blocks=[0,0]", "dim=16", "heads=2", "layers=1", "hidden=32", "bins=16", "smoothing=0",
        "batch_size=16", "validation_size=32", "threads=0",
    ) for word in ("--set", setting)),
]  # fmt: skip


def symmetries(found=NONE, centre=(0.0, 0.0, 0.0)) -> Symmetries:
    return Symmetries(
        found=found, centre=centre, radius=1.0, painted=False, tolerance=Tolerance(), distance=0.0,
        seen=Difference(0, 0),
    )  # fmt: skip


def forbidden(*_, **__):
    raise AssertionError("this was done already")


@pytest.fixture(scope="module")
def fitted(tmp_path_factory):
    """A fitted brick in millimetres, far from its file's origin: too short a time first, then a kill, then the rest."""
    folder = tmp_path_factory.mktemp("fit")
    brick, out = moved(box(1, 1.5, 2.2), Rotation.identity(), (120.0, -40.0, 20.0), 40.0), folder / "brick"
    file = written(brick, folder / "brick.stl")
    command = ["fit", str(file), "--out", str(out), *TINY]
    with pytest.MonkeyPatch.context() as patch:
        assert main(command) == 2
        short = (out / "training" / "6steps" / "best.safetensors").read_bytes()
        patch.setattr(fitting, "LEARNED", -math.inf)
        for done in ("find_symmetries", "view_ambiguity"):
            patch.setattr(fitting, done, forbidden)
        with pytest.MonkeyPatch.context() as kill:
            kill.setattr(fitting, "calibrate", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
            assert main(command) == 130
        assert not (out / "model.safetensors").exists()
        patch.setattr(fitting, "temper", forbidden)
        assert main(command) == 0
        patch.setattr(fitting, "calibrate", forbidden)
        patch.setattr(fitting, "judge", forbidden)
        (out / "index.html").unlink()
        assert main(command) == 0
    assert short == (out / "training" / "6steps" / "best.safetensors").read_bytes()
    return file, out


def test_a_fit_goes_on_where_it_was_killed_and_its_folder_is_whole(fitted):
    _, out = fitted
    names = {"model.safetensors", "index.html", "fit.json", "models_info.json", "symmetries.json", "mesh.npz"}
    assert names | {"preview.png", "evaluation.html", "evaluation.json"} <= {path.name for path in out.iterdir()}
    assert not list(out.rglob("*.tmp"))
    facts = json.loads((out / "fit.json").read_text())
    assert facts["part"]["symmetries"]["order"] == 4
    assert facts["part"]["centre"] == pytest.approx([120, -40, 20], rel=1e-5)
    assert facts["training"]["images"] == 6 * 16
    assert facts["evaluation"]["images"] == sum(row["images"] for row in facts["classes"][1:]) == 80
    assert facts["classes"][0]["kind"] == "all"
    for row in facts["classes"]:
        assert row["kind"] == "all" or row["kind"] == "curve" or int(row["kind"]) % 4 == 0  # whole orbits
        for level, one in row["coverage"].items():
            assert one["within_two_se"] == (abs(one["share"] - float(level)) <= 2 * one["se"])
    info = json.loads((out / "models_info.json").read_text())["1"]
    assert [info[f"size_{axis}"] for axis in "xyz"] == pytest.approx([40, 60, 88])  # the file's units
    assert len(info["symmetries_discrete"]) == 3


def test_a_fitted_folder_knows_its_part_and_calibration_and_serves_prediction_and_evaluation(fitted, tmp_path, prints):
    _, out = fitted
    model = aquamam.load(out)
    known = known_object(model)
    assert known is not None
    assert (known.name, known.mesh.radius) == ("brick", pytest.approx(FIT_RADIUS))
    found = model(Image.new("RGB", (20, 20))).region(0.9, generator=torch.Generator().manual_seed(0))
    assert found.calibrated
    assert model.info["symmetries"]["name"] == "D2"
    assert model.info["data"]["photographs"]
    assert model.config.pose
    picture = tmp_path / "photo.png"
    Image.fromarray(render(read_mesh(out / "mesh.npz"), np.eye(3), RenderSettings(size=40))).save(picture)
    (answer,) = json.loads(prints("predict", picture, "--model", f"{out}/", "--json", "--samples", 20))
    assert np.linalg.norm(answer["quaternion_xyzw"]) == pytest.approx(1, abs=1e-5)
    assert answer["up_to_symmetry"]["order"] == 4
    assert answer["verdict"].endswith("up to the 4 rotations that look the same")
    figures = json.loads(prints("evaluate", out, "--count", 16, "--samples", 0, "--json", "--quiet"))
    assert "drawn as in calibration" in figures["data"]
    assert figures["symmetries"] == {"brick": "known"}


def test_a_fitted_painted_part_knows_the_rotations_that_look_alike(tmp_path, monkeypatch):
    monkeypatch.setattr(fitting, "LEARNED", -math.inf)
    assert main(["fit", "die", "--plain", "--out", str(tmp_path / "die"), *TINY]) == 0
    model = aquamam.load(tmp_path / "die")
    picture = Image.fromarray(render(read_mesh(tmp_path / "die" / "mesh.npz"), np.eye(3), RenderSettings(size=40)))
    posterior = model(picture)
    assert model.view_classes is not None
    leaning = rotvec_to_quat(torch.tensor([0.03, 0.02, 0.4], dtype=torch.float64))  # the five alone faces the camera
    (which,) = model.view_classes.members(leaning[None])
    four = multiply(leaning, model.view_classes.elements[which])
    with torch.no_grad():
        log_p = posterior.log_prob(four[:, None])[:, 0]
    assert len(four) == 4
    torch.testing.assert_close(log_p, log_p[:1].expand(4))


def test_photographs_fine_tune_a_fitted_folder(fitted, tmp_path, prints, refuses):
    _, out = fitted
    photos = tmp_path / "photos"
    photos.mkdir()
    rows = ["image,class,qx,qy,qz,qw,split"]
    for i in range(6):
        Image.fromarray(np.full((30, 20, 3), 40 * i, np.uint8)).save(photos / f"{i}.png")
        rows.append(f"{i}.png,brick,0,0,0,1,{'valid' if i > 3 else 'train'}")
    (photos / "photos.csv").write_text("\n".join(rows) + "\n")
    (photos / "symmetries.json").write_bytes((out / "symmetries.json").read_bytes())
    arguments = ["train", "die-small", "--from", f"{out}/", "--data", str(photos), "--out", str(tmp_path / "tuned")]
    few = ["--steps", 2, "--set", "batch_size=4", "--quiet"]
    assert "2 steps" in prints(*arguments, *few, "--set", "labels_per_image=4")
    tuned = aquamam.load(tmp_path / "tuned")
    assert tuned.config == aquamam.load(out).config
    assert "calibration" not in tuned.info  # the old scores say nothing about the new weights
    assert tuned.info["symmetries"] == aquamam.load(out).info["symmetries"]  # it is the same part
    changed = [*arguments[:-1], tmp_path / "other", *few]
    assert "drop --set dim" in refuses(*changed, "--set", "dim=64")
    assert not (tmp_path / "other").exists()
    prints(*changed, "--set", "by_volume=true")  # no weight depends on it
    assert aquamam.load(tmp_path / "other").cells.by_volume


def test_a_unit_that_is_told_later_becomes_the_models(fitted, monkeypatch):
    """And nothing but the calibration is done again."""
    file, out = fitted
    monkeypatch.setattr(fitting, "LEARNED", -math.inf)
    monkeypatch.setattr(fitting, "temper", forbidden)
    assert main(["fit", str(file), "--out", str(out), *TINY, "--unit", "cm"]) == 0
    assert part_of(aquamam.load(out)).unit == "cm"


def test_a_folder_belongs_to_one_part(fitted, refuses):
    file, out = fitted
    for arguments, sentence in (
        (["fit", "tet", "--out", out, *TINY], "holds another fit: mesh"),
        (["fit", file, "--out", out, *TINY, "--plain"], "plain differ"),
        (["fit", file, "--out", file.parent, *TINY], "is no fit of ours"),
        (["fit", file, "--out", file, *TINY], "is a file"),
    ):
        assert sentence in refuses(*arguments)


# --- parts ------------------------------------------------------------------------------------------------------------

BRICK = box(1, 1.5, 2.2)
BAD = {
    "inside out": replace(BRICK, faces=BRICK.faces[:, ::-1]),
    "half inside out": replace(BRICK, faces=np.where(np.arange(12)[:, None] < 5, BRICK.faces[:, ::-1], BRICK.faces)),
    "doubled faces": replace(BRICK, faces=np.concatenate([BRICK.faces, BRICK.faces])),
    "an open box": replace(BRICK, faces=BRICK.faces[2:]),
    "three faces on an edge": replace(BRICK, faces=np.concatenate([BRICK.faces, [[0, 1, 7]]])),
    "bodies through one another": joined(BRICK, moved(BRICK, Rotation.from_rotvec([0.3, 0.5, 0.2]))),
    "two bodies": joined(BRICK, box(0.4, 0.4, 0.4, at=(2.0, 0, 0))),
    "huge": moved(BRICK, Rotation.identity(), (1e12, 0, 0), 1e12),
    "tiny": moved(BRICK, Rotation.identity(), (1e-12, 0, 0), 1e-12),
    "a flat sheet": replace(BRICK, faces=BRICK.faces[:1]),
}


@pytest.mark.parametrize("name", BAD)
def test_odd_meshes_are_placed_and_seen(name, tmp_path):
    mesh, centre, scale = placed(open_part(str(written(BAD[name], tmp_path / "odd.stl"))), symmetries())
    assert mesh.radius == pytest.approx(FIT_RADIUS)
    check_part(mesh, symmetries(), 32)
    own = BAD[name].vertices[np.unique(BAD[name].faces)]
    assert np.abs((own - centre) * scale).max() <= FIT_RADIUS * (1 + 1e-5)  # the way back to the file is known
    write_mesh(mesh, tmp_path / "mesh.npz")
    assert read_mesh(tmp_path / "mesh.npz").hash == mesh.hash


def test_parts_that_no_picture_tells_about_are_refused(tmp_path):
    far = joined(box(1, 1, 1), box(1, 1, 1, at=(3000.0, 0, 0)))
    mesh, _, _ = placed(far, symmetries())
    refused(r"fills 0\.\d of the 64 x 64 pixels", check_part, mesh, symmetries(), 64)
    refused("nothing to learn", check_part, BRICK, symmetries(SPHERE), 64)
    flat = written(replace(BRICK, vertices=0 * BRICK.vertices), tmp_path / "bad.stl")
    refused("area", open_part, str(flat))
    flat.write_text("solid a\nendsolid a\n")
    refused("triangle", open_part, str(flat))


def test_symmetric_parts_turn_about_the_centre_of_their_symmetries():
    wedge = prism(polygon(3), 0.6)  # a triangle's box has another middle than the triangle
    group = SymmetryGroup.cyclic(3, (0.0, 0.0, 1.0))
    mesh, centre, _ = placed(wedge, symmetries(replace(NONE, name="C3", group=group)))
    assert centre == [0.0, 0.0, 0.0]
    plain, middle, _ = placed(wedge, symmetries())
    assert middle == pytest.approx([0.25, 0, 0])
    turn = Rotation.from_rotvec([0, 0, 2 * math.pi / 3]).as_matrix()
    views = Rotation.random(4, random_state=1).as_matrix()
    same = [np.abs(render(m, views).astype(int) - render(m, views @ turn)).mean() for m in (mesh, plain)]
    assert same[0] < 0.5 < same[1]


# --- renders ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [PhotoDataset, RenderedDataset])
def test_renders_like_those_of_a_fit_are_drawn_anew(kind):
    part, group = solid("tetX"), SymmetryGroup.cyclic(3, (-1.0, 1.0, 1.0))
    settings = 24 if kind is PhotoDataset else RenderSettings(size=24)
    options = {"symmetries": {"tetX": group}, "seed": 3, "lookalikes": True}
    data = kind(part.mesh, settings, split="test", length=9, **options)
    batch = data.batch(range(9))
    assert all(np.array_equal(data.image(i), batch.images[i].permute(1, 2, 0).numpy()) for i in (0, 5))
    described = json.loads(json.dumps(data.describe()))
    model = SimpleNamespace(info={"data": described}, source=None)
    again = fresh_renders(model, seed=3, split="test", length=9)
    assert torch.equal(again.batch(range(9)).images, batch.images)
    assert again.describe() == described
    other = kind(part.mesh, settings, split="calibration", length=9, **options)
    assert not (other.batch(range(9)).rotations[:, 0] == batch.rotations[:, 0]).any()


def test_a_stage_is_done_again_when_its_inputs_or_its_files_change(tmp_path):
    stages, done = Stages(tmp_path), []

    def make():
        done.append(1)
        (tmp_path / "file").touch()
        return {"value": len(done)}

    for inputs, value in (([1], 1), ([1], 1), ([2], 2), ([2], 2)):
        assert stages("s", inputs, make, [tmp_path / "file"]) == {"value": value}
    (tmp_path / "file").unlink()
    assert stages("s", [2], make, [tmp_path / "file"]) == {"value": 3}


# --- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_is_one_file_and_a_hostile_name_stays_text(fitted, tmp_path):
    _, out = fitted
    text = (out / "index.html").read_text()
    assert not re.search(r"""(src|href)\s*=\s*["'](?!data:|evaluation\.html)""", text)
    assert "default-src 'none'" in text
    assert 'http-equiv="refresh"' not in text
    facts = json.loads((out / "fit.json").read_text())
    name = "</script><img src=x onerror=alert(1)>"
    page = fitpage.FitPage(tmp_path, read_mesh(out / "mesh.npz"), RenderedDataset(BRICK, RenderSettings(size=16)))
    text = page.write({**facts, "name": name}).read_text()
    assert "<img src=x" not in text
    assert 'http-equiv="refresh"' in text  # not done yet


@pytest.mark.parametrize("view", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_the_page_shows_everything_on_a_desktop_and_on_a_phone(fitted, browser, view):
    _, out = fitted
    with Visit(browser, (out / "index.html").as_uri(), viewport=view) as visit:
        visit.page.hover("canvas >> nth=1")
        assert "mean error" in visit.text("#tip")
        assert visit.page.locator("canvas").count() == 2
        assert visit.page.locator(".case").count() == 12
        assert visit.width() <= view["width"]


def test_too_short_a_time_is_told_and_the_checkpoint_kept(fitted, refuses, monkeypatch):
    file, out = fitted
    started = []
    monkeypatch.setattr(fitting, "load", lambda path, **_: started.append(path) or aquamam.load(path))
    error = refuses("fit", file, "--out", out, *TINY, "--steps", 3)
    assert "nothing was learned" in error
    assert "training/3steps" in error
    assert aquamam.load(out / "training" / "3steps") is not None
    assert started == [out / "training" / "6steps" / "best.safetensors"]  # another budget goes on from what there is
    assert "Nothing was learned" in (out / "index.html").read_text()


def test_what_calibrates_shows_parts_that_differ_from_the_mesh_and_what_trains_does_not(fitted):
    file, out = fitted
    fit = fitting.Fit(str(file), out, fitting.FitConfig(model=ModelConfig(image_size=16), train=TrainConfig()))
    fit.part = json.loads((out / "fit.json").read_text())["part"]
    errors = {
        split: fit.data(split).about["mesh_error"] for split in ("train", "valid", "temper", "calibration", "test")
    }
    assert errors == {"train": 0.0, "valid": 0.0, "temper": 0.08, "calibration": 0.08, "test": 0.08}
