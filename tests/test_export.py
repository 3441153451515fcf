"""The exported graphs: they say the same as the checkpoint, and their description is true."""

import json
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from networks import tiny_model
from PIL import Image
from refusals import refused
from registry import inputs

import aquamam
from aquamam.baselines.classification import Classification, ClassificationConfig
from aquamam.checkpoints.checkpoint import save_model
from aquamam.cli.main import main
from aquamam.export import onnx, runner
from aquamam.export.onnx import Decoder, Encoder, export, largest_difference
from aquamam.export.runner import Files, OnnxModel
from aquamam.geometry.camera import Crop
from aquamam.geometry.rotations import random_quat
from aquamam.network.model import AQuaMaM, RotationModel
from aquamam.posterior.calibration import Calibration
from aquamam.posterior.poses import PoseDistribution
from aquamam.serving.batcher import Encoded

CONFIGS = {
    "stem": {"layers": 2, "stem_blocks": (0, 1), "pose": True},
    "patches": {"embedding": "patches", "patch_size": 8, "channels": 1, "chart": "hemisphere", "density": "paper"},
    "category": {"embedding": "category", "tokens": 5, "layers": 2, "chart": "hemisphere"},
}


def make(name: str) -> AQuaMaM:
    model = tiny_model(2.0, hidden=24, octaves=3, **CONFIGS[name])
    model.calibration = Calibration(temperatures=(0.8, 1.25, 0.9), floor=0.01)
    return model


@pytest.fixture(scope="module", params=["stem", "patches"])
def exported(request, tmp_path_factory) -> tuple[AQuaMaM, Path]:
    """A model and the name of its graphs; tracing takes its time, so once each: one by the engine's cache, one by the
    command."""
    model, folder = make(request.param), tmp_path_factory.mktemp("onnx")
    model.learn(data={"objects": [{"name": "die"}]})
    checkpoint = save_model(model, folder / "model.safetensors")
    if request.param == "patches":
        assert main(["export", str(checkpoint), str(folder / "model.onnx")]) == 0
        return model, folder / "model.onnx"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder))
        aquamam.load(checkpoint, engine="onnx")
    (cached,) = (folder / "aquamam").iterdir()
    return model, cached / "model.onnx"


def test_the_graphs_give_the_poses_of_the_checkpoint(exported, generator):
    model, path = exported
    if not model.config.pose:
        pytest.skip("this one tells rotations only")
    images, crop = inputs(model, 2), Crop(turn=torch.tensor([0, 0, 0, 1.0]).double(), focal=600.0, side=80.0)
    ours, theirs = (PoseDistribution(m(images), [crop] * 2, radius=0.1) for m in (model, aquamam.load(path)))
    drawn = ours.sample(5, generator=generator)
    assert torch.allclose(ours.log_prob(drawn), theirs.log_prob(drawn), atol=1e-4)
    assert torch.allclose(ours.mode.translation, theirs.mode.translation, atol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_graphs_give_the_posterior_of_the_checkpoint(exported, count, generator):
    model, path = exported
    images = inputs(model, count)
    q = random_quat((9, count), generator=generator)
    with torch.no_grad():
        mine, theirs = model(images), OnnxModel(path, threads=1)(images)
        assert theirs.log_prob(q) == pytest.approx(mine.log_prob(q), abs=1e-4)
        assert theirs.mode == pytest.approx(mine.mode, abs=1e-6)
        assert theirs.topk(4).log_probs == pytest.approx(mine.topk(4).log_probs, abs=1e-4)
        draws = [posterior.sample((40,), generator=torch.Generator().manual_seed(1)) for posterior in (mine, theirs)]
    same = (draws[0] - draws[1]).abs().amax(-1) < 1e-6  # a draw on the very edge of a bin may fall to the other side
    assert same.double().mean() > 0.99 if count else len(same) == 40
    assert largest_difference(model, path) < 1e-4


@pytest.mark.parametrize("name", CONFIGS)
def test_the_traced_networks_equal_the_model_for_every_kind_of_input(name, generator):
    model = make(name)
    images = inputs(model, 2)
    chart = torch.randint(model.cells.chart.count, (5, 2), generator=generator)
    later, width = model.config.later_tokens, 2 * model.config.dim
    seen = torch.rand((5, 2, later), generator=generator) - 0.5
    with torch.no_grad():
        prefix = model.encode(images)
        want, _ = prefix.rest(chart, seen)
        first, *states = Encoder(model)(images)
        past = torch.full((len(model.blocks), 2, 5, later, width), 7.0)  # nobody looks at what is not there yet
        got = []
        for step in range(later):
            before = past[..., :-1, :].flatten(-2)
            logits, *own = Decoder(model)(torch.tensor(step), chart.T, seen[..., step].T, *states, *before)
            past[:, :, :, step] = torch.stack(own)
            got.append(logits.transpose(0, 1))
        assert first == pytest.approx(prefix.first(), abs=1e-5)
    assert torch.stack(got, 2) == pytest.approx(want, abs=1e-5)


def test_the_description_names_the_tensors_of_the_graphs(exported):
    import onnxruntime

    model, path = exported
    files = Files.at(path)
    description = json.loads(files.description.read_text())
    assert description["config"] == json.loads(json.dumps(model.config.to_dict()))
    for name in ("encoder", "decoder"):
        graph = description["graphs"][name]
        session = onnxruntime.InferenceSession(path.with_name(graph["file"]), providers=["CPUExecutionProvider"])
        for told, found in ((graph["inputs"], session.get_inputs()), (graph["outputs"], session.get_outputs())):
            assert [t["name"] for t in told] == [f.name for f in found]
            assert [t["shape"] for t in told] == [f.shape for f in found]
            kinds = {"float32": "tensor(float)", "int64": "tensor(int64)"}
            assert [kinds[t["type"]] for t in told] == [f.type for f in found]


def test_three_files_are_written_and_no_path_of_the_machine_gets_into_them(exported):
    _, path = exported
    for file in Files.at(path):
        assert str(Path(__file__).parents[1]).encode() not in file.read_bytes()
        assert b".py" not in file.read_bytes()
    names = {file.name for file in path.parent.iterdir()} - {"model.safetensors", "die.png"}
    assert names == {"model.encoder.onnx", "model.decoder.onnx", "model.json"}


def test_the_runner_reads_pictures_as_the_model_does(exported):
    model, path = exported
    picture = Image.fromarray(np.arange(20 * 31 * 3, dtype=np.uint8).reshape(20, 31, 3))
    q = torch.tensor([[0.5, 0.5, -0.5, 0.5]])
    with torch.no_grad():
        assert OnnxModel(path)(picture).log_prob(q) == pytest.approx(model(picture).log_prob(q), abs=1e-4)
    refused("shape", OnnxModel(path), torch.rand(2, 3, 5, 5))


def test_exported_models_are_served_in_batches(exported, generator):
    model, path = exported
    side = model.config.image_size
    images = torch.randint(256, (3, model.config.channels, side, side), generator=generator, dtype=torch.uint8)
    together = Encoded(OnnxModel(path), list(images))
    q = random_quat((5, 1), generator=generator)
    with torch.no_grad():
        for i in range(3):
            alone = model(images[i : i + 1])
            assert together.row(i).log_prob(q) == pytest.approx(alone.log_prob(q), abs=1e-4)
            assert together.plain[i].quaternion == pytest.approx(alone.mode[0].tolist(), abs=1e-6)


def test_the_documentation_is_true(exported, monkeypatch, capsys):
    """The Python of docs/export.md runs; its decoder without torch finds the same rotations as the model."""
    model, path = exported
    text = (Path(__file__).parents[1] / "docs" / "export.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    assert len(blocks) == 2
    monkeypatch.chdir(path.parent)
    side = model.config.image_size
    pixels = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("die.png")
    for block in blocks:
        if model.config.channels == 1:
            block = block.replace('"RGB"', '"L"').replace("[None].transpose(0, 3, 1, 2)", "[None, None]")
        names: dict = {}
        exec(block, names)
        assert np.abs(names["q"] @ model(Image.open("die.png")).mode[0].numpy()) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda f: f.description.unlink(), "there is none"),
        (lambda f: f.description.write_text("{"), "not JSON"),
        (lambda f: f.description.write_text("[]"), "does not describe"),
        (lambda f: f.decoder.unlink(), "keep its three files together"),
        (lambda f: f.encoder.write_bytes(b"\0" + f.encoder.read_bytes()), "is not the graph"),
    ],
)
def test_damaged_exports_are_told_in_one_sentence(exported, tmp_path, damage, sentence):
    files = Files.at(exported[1])
    for file in files:
        (tmp_path / file.name).write_bytes(file.read_bytes())
    damage(Files.at(tmp_path / "model.onnx"))
    refused(sentence, OnnxModel, tmp_path / "model.onnx")


def test_what_cannot_be_exported_is_told(tmp_path):
    small = {"dim": 16, "heads": 2, "layers": 1, "hidden": 16, "image_size": 16, "stem": (4,), "stem_blocks": (0,)}
    refused("classification", export, Classification(ClassificationConfig(**small)), tmp_path / "a.onnx")


# --- the engine -------------------------------------------------------------------------------------------------------


def agree(mine: RotationModel, theirs: RotationModel, generator: torch.Generator) -> None:
    assert (theirs.info, theirs.calibration) == (mine.info, mine.calibration)
    images, q = inputs(mine, 2), random_quat((20, 2), generator=generator)
    with torch.no_grad():
        ours, other = mine(images), theirs(images)
        assert type(other.unwrapped) is type(ours.unwrapped)
        assert other.log_prob(q) == pytest.approx(ours.log_prob(q), abs=1e-4)
        assert other.mode == pytest.approx(ours.mode, abs=1e-6)


@pytest.fixture(scope="module")
def die(tmp_path_factory) -> tuple[RotationModel, Files]:
    """The bundled die by onnxruntime, and its files in the cache."""
    cache = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(cache))
        return aquamam.load("die", engine="onnx"), Files.at(next(cache.rglob("model.json")))


def test_the_bundled_die_says_the_same_with_both_engines(die, generator):
    agree(aquamam.load("die"), die[0], generator)


def test_eight_bits_cost_the_bundled_die_less_than_a_twentieth_of_a_nat(die, tmp_path, monkeypatch, prints):
    traced = (file.read_bytes() for file in die[1])
    monkeypatch.setattr(onnx, "to_onnx", lambda *_: next(traced))  # tracing again would take its time
    told = prints("export", "die", tmp_path / "small.onnx", "--int8")
    cost = float(re.search(r"mean log density of 512 fresh renders by ([+-][\d.]+)", told)[1])
    assert -0.05 < cost != 0
    encoder = Files.at(tmp_path / "small.onnx").encoder.read_bytes()
    assert len(encoder) < 4e6  # of 9.7 in float32
    assert str(tmp_path).encode() not in encoder


def test_eight_bits_that_cost_too_much_are_refused(exported, tmp_path, monkeypatch, refuses):
    model, path = exported
    if model.config.channels == 1:
        return  # renders are coloured
    traced = (file.read_bytes() for file in Files.at(path))
    monkeypatch.setattr(onnx, "to_onnx", lambda *_: next(traced))
    monkeypatch.setattr("aquamam.cli.export.MOST", -100.0)
    checkpoint = save_model(model, tmp_path / "model.safetensors")
    assert "export again without --int8" in refuses("export", checkpoint, tmp_path / "small.onnx", "--int8")


def test_graphs_are_made_once_and_again_when_they_are_damaged(exported, tmp_path, monkeypatch, generator, prints):
    model, path = exported
    if model.config.embedding == "patches":
        return  # exported by the command
    monkeypatch.setenv("XDG_CACHE_HOME", str(path.parents[2]))
    made: list[Path] = []

    def copied(_, out: Path) -> None:  # tracing again would take its time
        made.append(out)
        shutil.copytree(tmp_path / "good", out.parent, dirs_exist_ok=True)

    monkeypatch.setattr(onnx, "export", copied)
    shutil.copytree(path.parent, tmp_path / "good")
    checkpoint = path.parents[2] / "model.safetensors"
    theirs = aquamam.load(checkpoint, engine="onnx")
    assert theirs.source == checkpoint
    agree(aquamam.load(checkpoint), theirs, generator)
    assert not made
    path.with_name("model.decoder.onnx").write_bytes(b"half of it")
    aquamam.load(checkpoint, engine="onnx")
    assert len(made) == 1
    assert [file.name for file in path.parent.parent.iterdir()] == [path.parent.name]

    answers = []
    Image.fromarray(np.arange(20 * 31 * 3, dtype=np.uint8).reshape(20, 31, 3)).save(tmp_path / "a.png")
    for name in runner.ENGINES:
        command = ["predict", tmp_path / "a.png", "--model", checkpoint, "--engine", name, "--json"]
        answers += json.loads(prints(*command, "--samples", 100))
    assert answers[0]["log_density"] == pytest.approx(answers[1]["log_density"], abs=1e-4)
    assert answers[0]["quaternion_xyzw"] == pytest.approx(answers[1]["quaternion_xyzw"], abs=1e-6)


def test_engines_that_cannot_run_are_told_in_one_sentence(exported, monkeypatch):
    model, path = exported
    assert aquamam.load(path).config == model.config  # exported files need no engine to be named
    refused("torch or onnx, got 'tpu'", aquamam.load, "die", engine="tpu")
    refused("on the CPU", aquamam.load, "die", engine="onnx", device="cuda")
    monkeypatch.setenv("XDG_CACHE_HOME", str(path.with_suffix(".json")))  # no folder can be made below a file
    refused("set XDG_CACHE_HOME", aquamam.load, "die", engine="onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    refused(r"pip install 'aquamam\[export\]'", aquamam.load, "die", engine="onnx")
