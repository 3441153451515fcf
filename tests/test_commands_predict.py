"""predict, sample, density and plot, as a person runs them."""

import csv
import io
import json
import math

import numpy as np
import pytest
import torch
from networks import tiny_model
from PIL import Image

from aquamam.checkpoints.checkpoint import load, save_model
from aquamam.cli.main import main
from aquamam.geometry.rotations import random_quat
from aquamam.network.images import find_images, fit_to, pil_to_tensor, read_image
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid

Q = (0.4, -0.3, 0.2, 0.842615)


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    """A small network with random weights that says it was trained on the die."""
    network = tiny_model(bins=40, dim=32, hidden=32, image_size=32, stem=(8, 16))
    with torch.no_grad():
        for p in network.parameters():
            p.add_(0.3 * torch.randn_like(p))  # so that it answers to its input
    data = {"objects": [{"name": "die", "mesh": solid("die").mesh.hash}], "settings": RenderSettings().to_dict()}
    path = tmp_path_factory.mktemp("model") / "die.safetensors"
    save_model(network, path, {"data": data})
    return str(path)


@pytest.fixture(scope="module")
def picture() -> Image.Image:
    return Image.fromarray(render(solid("die").mesh, np.array(Q), RenderSettings(size=64)))


@pytest.fixture
def die(picture, tmp_path) -> str:
    picture.save(tmp_path / "die.png")
    return str(tmp_path / "die.png")


def test_json_holds_everything_about_an_image(prints, model, die):
    (found,) = json.loads(prints("predict", die, "--model", model, "--json", "--matrix", "--samples", "64"))
    assert found["image"] == die
    q = torch.tensor(found["quaternion_xyzw"], dtype=torch.float64)
    assert math.isclose(float(q.norm()), 1, abs_tol=1e-6)
    R = np.array(found["matrix"])
    assert np.allclose(R @ R.T, np.eye(3), atol=1e-6)
    angle = 2 * math.acos(min(1.0, float(q[3])))
    assert math.isclose(float(np.linalg.norm(found["rotvec"])), angle, abs_tol=1e-5)
    assert found["share_within_5_deg"] <= found["share_within_15_deg"] <= found["share_within_30_deg"]
    assert found["log_density"] <= found["ceiling"] + 3  # cells that the boundary cuts may be denser


def test_table_and_csv_tell_the_same(prints, model, die):
    common = ("predict", die, "--model", model, "--samples", "64")
    (found,) = json.loads(prints(*common, "--json"))
    table = prints(*common)
    line = table.splitlines()[-1]
    assert all(part in line for part in [*(f"{x:+.5f}" for x in found["quaternion_xyzw"]), found["verdict"]])
    assert "ceiling" in table
    (row,) = csv.DictReader(io.StringIO(prints(*common, "--csv", "--matrix")))
    assert [float(row[c]) for c in ("qx", "qy", "qz", "qw")] == found["quaternion_xyzw"]
    assert [float(row[c]) for c in ("rx", "ry", "rz")] == found["rotvec"]
    assert float(row["share_within_30_deg"]) == found["share_within_30_deg"]
    assert int(row["modes"]) == len(found["modes"])
    assert "r22" in row


def test_an_images_answer_does_not_depend_on_its_neighbours(prints, model, die, tmp_path):
    Image.new("RGB", (40, 40), "green").save(tmp_path / "a.png")
    alone = json.loads(prints("predict", die, "--model", model, "--json", "--samples", "64"))
    folder = json.loads(prints("predict", str(tmp_path), "--model", model, "--json", "--samples", "64"))
    assert [record["image"].rsplit("/", 1)[-1] for record in folder] == ["a.png", "die.png"]
    assert folder[1] == alone[0]


def test_without_samples_there_are_rotations_and_densities_only(prints, model, die):
    (full,) = json.loads(prints("predict", die, "--model", model, "--json", "--samples", "64"))
    (fast,) = json.loads(prints("predict", die, "--model", model, "--json", "--samples", "0"))
    assert fast["quaternion_xyzw"] == full["quaternion_xyzw"]
    assert fast["log_density"] == full["log_density"]
    assert "modes" not in fast


def test_the_expected_strategy_tells_the_rotation_of_least_expected_error(prints, model, die, tmp_path):
    """Whatever stands beside the image."""
    Image.new("RGB", (40, 40), "green").save(tmp_path / "a.png")
    arguments = ("predict", tmp_path, "--model", model, "--json", "--samples", 0, "--strategy")
    (_, greedy), (_, found) = (json.loads(prints(*arguments, strategy)) for strategy in ("greedy", "expected"))
    least = load(model)(read_image(die)).predict("expected", generator=torch.Generator().manual_seed(0))[0].tolist()
    assert found["quaternion_xyzw"] == pytest.approx(least, abs=1e-6) != greedy["quaternion_xyzw"]


def test_unreadable_files_cost_a_sentence_and_not_the_others(capsys, model, die, tmp_path):
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "cut.png").write_bytes((tmp_path / "die.png").read_bytes()[:300])
    names = [str(tmp_path / name) for name in ("text.png", "cut.png", "none.png")]
    assert main(["predict", *names, die, "--model", model, "--csv", "--samples", "0"]) == 2
    out, err = capsys.readouterr()
    assert len(list(csv.DictReader(io.StringIO(out)))) == 1
    assert len(err.splitlines()) == 3
    for name in names:
        assert name in err
    assert "Traceback" not in err


def transparent(picture: Image.Image) -> Image.Image:
    """White is transparent, and black below."""
    pixels = np.asarray(picture)
    alpha = np.where((pixels == 255).all(-1), 0, 255).astype(np.uint8)
    return Image.fromarray(np.dstack([np.where(alpha[..., None] == 0, 0, pixels).astype(np.uint8), alpha]))


def grey(picture: Image.Image) -> np.ndarray:
    return np.asarray(picture.convert("L"))


def with_gaps(picture: Image.Image) -> Image.Image:
    """Float pixels, some of which are infinite or no numbers."""
    values = grey(picture).astype(np.float32) / 255
    values[0, :3] = np.inf, np.nan, -np.inf
    return Image.fromarray(values)


EXIF = Image.Exif()
EXIF[0x0112] = 6  # as a camera on its side stores it
FINE = {"quality": 98, "subsampling": 0}
SAVED = {  # how a picture is made, and how it is stored
    "png": (lambda picture: picture, "PNG", {}),
    "jpeg": (lambda picture: picture, "JPEG", FINE),
    "webp": (lambda picture: picture, "WEBP", {"lossless": True}),
    "grey": (lambda picture: picture.convert("L"), "PNG", {}),
    "16-bit": (lambda picture: Image.fromarray(grey(picture).astype(np.uint16) * 257), "PNG", {}),
    "float": (lambda picture: Image.fromarray(grey(picture).astype(np.float32) / 255), "TIFF", {}),
    "float with gaps": (with_gaps, "TIFF", {}),
    "alpha": (transparent, "PNG", {}),
    "palette": (lambda picture: picture.quantize(256), "PNG", {}),
    "cmyk": (lambda picture: picture.convert("CMYK"), "JPEG", FINE),
    "exif": (lambda picture: picture.transpose(Image.Transpose.ROTATE_90), "PNG", {"exif": EXIF}),
}


@pytest.mark.parametrize("kind", SAVED)
def test_the_network_sees_the_same_whatever_the_file(picture, tmp_path, kind):
    path = tmp_path / f"{kind}.img"  # the content decides, not the name
    make, form, options = SAVED[kind]
    make(picture).save(path, form, **options)
    picture = picture.convert("L").convert("RGB") if kind.startswith(("grey", "16-bit", "float")) else picture
    expected = np.asarray(picture.resize((32, 32), Image.Resampling.BOX))
    seen = pil_to_tensor(read_image(path), 3, (64, 64)).permute(1, 2, 0).numpy()
    seen = np.asarray(Image.fromarray(seen).resize((32, 32), Image.Resampling.BOX))
    assert np.abs(seen.astype(int) - expected).mean() < (4 if kind in ("palette", "cmyk", "jpeg") else 1)


def test_a_wide_picture_is_padded_and_not_stretched(picture):
    wide = Image.new("RGB", (128, 64), "white")
    wide.paste(picture, (32, 0))
    fitted = np.asarray(fit_to(wide, (64, 64))).astype(int)
    small = np.asarray(picture.resize((32, 32), Image.Resampling.BICUBIC)).astype(int)
    assert np.abs(fitted[16:48, 16:48] - small).mean() < 2
    assert (fitted[:15] == 255).all()
    assert fit_to(Image.new("RGB", (100_000, 1), "red"), (64, 64)).size == (64, 64)


def test_folders_give_their_images_in_order(tmp_path, picture):
    for name in ("b.png", "sub/a.JPG", ".hidden.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        picture.save(tmp_path / name, "PNG")
    assert [p.name for p in find_images([tmp_path])] == ["b.png", "a.JPG"]
    assert find_images(["a", "b"])[1].name == "b"  # whether a file is there is seen when it is read


def test_samples_are_drawn_by_their_seed_and_carry_their_density(prints, model, die, tmp_path):
    command = ("sample", die, "--model", model, "-n", "7", "--seed")
    text = prints(*command, 1)
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == 7
    assert prints(*command, 1) == text != prints(*command, 2)
    (found,) = json.loads(prints(*command, "1", "--json"))
    assert found["log_density"] == [float(row["log_density"]) for row in rows]
    assert found["quaternions_xyzw"] == [[float(row[c]) for c in ("qx", "qy", "qz", "qw")] for row in rows]
    file = tmp_path / "out" / "samples.csv"
    assert prints(*command, 1, "--out", file) == ""
    assert file.read_text() == text
    scored = prints("density", die, "--model", model, "--rotations", file)
    for drawn, row in zip(rows, csv.DictReader(io.StringIO(scored))):
        assert row["image"] == drawn["image"]
        assert math.isclose(float(row["log_density"]), float(drawn["log_density"]), abs_tol=2e-3)


def test_density_takes_columns_in_any_order_either_sign_other_measures_and_a_pipe(
    prints, model, die, tmp_path, monkeypatch
):
    table = tmp_path / "r.csv"
    table.write_text("name,qw,qx,qy,qz\nfirst,1,0,0,0\nsecond,-1,0,0,0\n")
    common = ("density", die, "--model", model, "--rotations", str(table))
    rows = list(csv.DictReader(io.StringIO(prints(*common))))
    assert [row["name"] for row in rows] == ["first", "second"]
    assert rows[0]["log_density"] == rows[1]["log_density"]
    found = json.loads(prints(*common, "--measure", "1", "--json"))
    assert math.isclose(found["log_density"][0], float(rows[0]["log_density"]) + 2 * math.log(math.pi), abs_tol=1e-4)
    monkeypatch.setattr("sys.stdin", io.StringIO(table.read_text()))
    assert list(csv.DictReader(io.StringIO(prints(*common[:-1], "-")))) == rows


def test_density_within_a_tolerance_keeps_what_is_likely(refuses, prints, model, die, tmp_path):
    q = random_quat((4 * 40 * 2,), generator=torch.Generator().manual_seed(0))  # a map: two for each first token
    table = tmp_path / "r.csv"
    table.write_text("qx,qy,qz,qw\n" + "".join(",".join(map(str, row)) + "\n" for row in q.tolist()))
    common = ("density", die, "--model", model, "--rotations", str(table), "--json")
    exact, near = (np.array(json.loads(prints(*common, *more))["log_density"]) for more in ((), ("--within", "1e-2")))
    likely = exact > exact.max() - 1
    assert np.allclose(exact[likely], near[likely], atol=1e-3)
    assert not np.allclose(exact, near, atol=1e-3)
    assert "tolerance" in refuses(*common, "--within", "2")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("qx,qy,qz\n0,0,0\n", "lacks qw"),
        ("", "header"),
        ("qx,qy,qz,qw\n0,0,0,2\n", "line 2"),
        ("qx,qy,qz,qw\n0,0,0,1\n0,0,nan,1\n", "line 3"),
        ("qx,qy,qz,qw\n0,0,x,1\n", "line 2"),
        ("qx,qy,qz,qw\n0,0,1\n", "line 2"),
    ],
)
def test_a_wrong_table_of_rotations_is_one_sentence(refuses, model, die, tmp_path, text, told):
    (tmp_path / "r.csv").write_text(text)
    assert told in refuses("density", die, "--model", model, "--rotations", str(tmp_path / "r.csv"))


@pytest.mark.parametrize(
    ("name", "options", "start"),
    [
        ("ball.png", ["--truth=-0.4,0.3,-0.2,-0.842615"], b"\x89PNG"),
        ("map.pdf", ["--kind", "mollweide", "--axis", "y"], b"%PDF"),
        ("bins.svg", ["--kind", "marginals", "--truth", "0,0,0,1"], b"<?xml"),
        ("page.html", ["--truth", "0,0,0,1"], b"<!doctype html>"),
    ],
)
def test_plots_of_every_kind_are_written(prints, model, die, tmp_path, name, options, start):
    out = tmp_path / "plots" / name
    few = [] if "marginals" in options else ["--samples", "30", "--uniform", "20"]
    assert prints("plot", die, "-o", out, "--model", model, *few, *options).strip() == str(out)
    content = out.read_bytes()
    assert content.startswith(start)
    if name == "page.html":
        assert b'"name":"die"' in content  # the model's object is known by its mesh


def test_a_runs_folder_gives_its_learning_curve(prints, tmp_path):
    record = {"step": 5, "images": 640, "log_likelihood": 1.5, "train_log_likelihood": 1.4, "ceiling": 17.6}
    (tmp_path / "log.jsonl").write_text(json.dumps(record) + "\n")
    prints("plot", tmp_path, "-o", tmp_path / "curve.png")
    assert (tmp_path / "curve.png").read_bytes().startswith(b"\x89PNG")
