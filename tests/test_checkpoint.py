"""Checkpoints survive, and damaged ones say so."""

import json

import pytest
import torch
from networks import tiny_model
from refusals import refused
from registry import tiny

import aquamam
from aquamam.checkpoints.checkpoint import load_tensors, save_tensors
from aquamam.data.base import RotationDataset
from aquamam.data.labels import carried_over
from aquamam.network.model import AQuaMaM
from aquamam.rendering.solids import solid


@pytest.fixture
def model() -> AQuaMaM:
    return tiny("stem")


@pytest.mark.parametrize("name", ["m.safetensors", "folder"])
def test_round_trip(model, tmp_path, name):
    aquamam.save_model(model, tmp_path / name, {"note": "hello"})
    again = aquamam.load(tmp_path / name)
    assert again.config == model.config
    assert again.info["note"] == "hello"
    assert not again.training
    for a, b in zip(model.state_dict().values(), again.state_dict().values()):
        assert torch.equal(a, b)
    assert not list(tmp_path.rglob("*.tmp"))
    for description in tmp_path.rglob("config.json"):
        assert json.loads(description.read_text())["config"]["bins"] == 30


def test_half_precision_is_half_the_size_and_loads_as_single(model, tmp_path):
    aquamam.save_model(model, tmp_path / "whole.safetensors")
    aquamam.save_model(model, tmp_path / "half.safetensors", half=True)
    whole, half = ((tmp_path / f"{n}.safetensors").stat().st_size for n in ("whole", "half"))
    assert half < 0.75 * whole
    again = aquamam.load(tmp_path / "half.safetensors")
    for a, b in zip(model.state_dict().values(), again.state_dict().values()):
        assert b.dtype == torch.float32
        assert torch.allclose(a, b, atol=1e-3)


def test_a_failed_write_leaves_the_old_file(model, tmp_path, monkeypatch):
    path = tmp_path / "m.safetensors"
    aquamam.save_model(model, path)
    before = path.read_bytes()
    monkeypatch.setattr("os.fsync", lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space"):
        aquamam.save_model(model, path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["m.safetensors"]


def edited(change):
    """Write the file again with other tensors or another description."""

    def damage(path):
        tensors, description = load_tensors(path)
        save_tensors(path, *change(tensors, description))

    return damage


def with_config(**values):
    return edited(lambda t, d: (t, {**d, "config": {**d["config"], **values}}))


DAMAGES = {
    "truncated": (lambda path: path.write_bytes(path.read_bytes()[:-100]), "damaged"),
    "noise": (lambda path: path.write_bytes(b"hello world, this is no checkpoint"), "damaged"),
    "lacks a tensor": (edited(lambda t, d: ({n: t[n] for n in t if n != "start"}, d)), "does not fit"),
    "another size": (with_config(bins=40), "does not fit"),
    "unknown field": (with_config(colour=1), "no field colour"),
    "unknown kind": (edited(lambda t, d: (t, {**d, "kind": "oracle"})), "kind"),
    "no info": (edited(lambda t, d: (t, {**d, "info": None})), "dictionaries"),
    "no config": (edited(lambda t, d: (t, {**d, "config": None})), "dictionaries"),
    "a word for a number": (with_config(bins="many"), "describes no model"),
    "not a number": (edited(lambda t, d: ({**t, "start": t["start"] * torch.nan}, d)), "not finite"),
    "no model": (edited(lambda t, d: (t, {})), "holds no model"),
}


@pytest.mark.parametrize(("damage", "rule"), DAMAGES.values(), ids=DAMAGES)
def test_damaged_files_get_one_clear_sentence(model, tmp_path, damage, rule):
    path = aquamam.save_model(model, tmp_path / "m.safetensors")
    damage(path)
    refused(rule, aquamam.load, path)


def test_missing_files_get_one_clear_sentence(tmp_path):
    refused("no checkpoint", aquamam.load, tmp_path / "nothing.safetensors")
    refused("must hold model", aquamam.load, tmp_path)
    refused("no file", aquamam.import_original, tmp_path / "nothing.pt")


class Surprise:
    def __reduce__(self):
        return (print, ("code ran",))


def test_importing_runs_no_code_from_the_file(tmp_path, capsys):
    torch.save({"cls_token": Surprise()}, tmp_path / "evil.pt")
    refused("plain tensors", aquamam.import_original, tmp_path / "evil.pt")
    assert "code ran" not in capsys.readouterr().out
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pt")
    refused("lacks", aquamam.import_original, tmp_path / "other.pt")


def test_a_description_may_hold_any_name(tmp_path):
    file = aquamam.save_model(tiny_model(), tmp_path / "model.safetensors", {"model": "mine", "self": 1})
    assert aquamam.load(file).info["model"] == "mine"


def test_what_is_known_of_an_object_stays_with_that_object():
    """Lookalikes of our die are not those of every die."""
    die = aquamam.load("die")

    class Pictures(RotationDataset):
        def __init__(self, classes, objects=()):
            self.classes, self.objects = classes, objects

        def describe(self):
            return {"objects": list(self.objects)} if self.objects else {}

    mesh = solid("die").mesh.hash
    known = {key: die.info[key] for key in ("symmetries", "view_classes", "part")}
    assert carried_over(die, Pictures(["die"], [{"name": "die", "mesh": mesh}])) == known
    assert carried_over(die, Pictures(["die"], [{"name": "die", "mesh": "another"}])) == {}
    assert carried_over(die, Pictures(["die"])) == {}
    assert carried_over(die, Pictures(["die", "cube"])) == {}
    die.info["classes"] = ["bracket"]
    assert carried_over(die, Pictures(["bracket"])) == known
