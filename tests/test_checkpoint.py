"""Checkpoints survive releases and travels, and damaged ones say so.

`tests/releases/VERSION` holds tiny models with untrained weights and, in `log_densities.json`, what they gave. The hub
is a folder here, and no network is asked.
"""

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from refusals import refused
from registry import inputs, make_model, tiny
from torch import Tensor

import aquamam
from aquamam.checkpoints.checkpoint import KINDS, load_tensors, save_tensors
from aquamam.data.base import RotationDataset
from aquamam.data.labels import carried_over
from aquamam.rendering.known import known_object
from aquamam.rendering.meshes import write_mesh
from aquamam.rendering.solids import solid


def test_half_precision_is_half_the_size_and_loads_as_single(tmp_path):
    model = tiny("stem")
    aquamam.save_model(model, tmp_path / "whole.safetensors")
    aquamam.save_model(model, tmp_path / "half.safetensors", half=True)
    whole, half = ((tmp_path / f"{n}.safetensors").stat().st_size for n in ("whole", "half"))
    assert half < 0.75 * whole
    again = aquamam.load(tmp_path / "half.safetensors")
    for a, b in zip(model.state_dict().values(), again.state_dict().values()):
        assert b.dtype == torch.float32
        assert torch.allclose(a, b, atol=1e-3)


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
def test_damaged_files_get_one_clear_sentence(tmp_path, damage, rule):
    path = aquamam.save_model(tiny("stem"), tmp_path / "m.safetensors")
    damage(path)
    refused(rule, aquamam.load, path)


def test_missing_files_get_one_clear_sentence(tmp_path):
    refused("no checkpoint", aquamam.load, tmp_path / "nothing.safetensors")
    refused("must hold model", aquamam.load, tmp_path)
    refused("no file", aquamam.import_original, tmp_path / "nothing.pt")
    torch.save({"weight": torch.zeros(2)}, tmp_path / "other.pt")
    refused("lacks", aquamam.import_original, tmp_path / "other.pt")


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


RELEASES = Path(__file__).parent / "releases"
FILES = sorted(RELEASES.rglob("*.safetensors"))
QUATERNIONS = torch.tensor([[1.0, 2, 3, 4], [-4, 3, -2, 1], [0, 0, 0, 1], [5, -5, 5, 5]])  # not of length one yet


def log_densities(file: Path) -> Tensor:
    """Of four rotations (rows) for two inputs that need no random numbers."""
    model = aquamam.load(file)
    q, x = torch.nn.functional.normalize(QUATERNIONS, dim=-1)[:, None], inputs(model, 2)
    if x.is_floating_point():
        x = torch.linspace(0, 1, x.numel()).reshape(x.shape)
    with torch.no_grad():
        return model(x).log_prob(q.expand(4, 2, 4))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_released_checkpoint_gives_the_densities_that_it_gave(file):
    then = json.loads((file.parent / "log_densities.json").read_text())[file.stem]
    assert log_densities(file).tolist() == [pytest.approx(row, abs=2e-3) for row in then]


@pytest.mark.parametrize("version", sorted(path.name for path in RELEASES.iterdir()))
def test_a_release_is_kept_with_all_its_kinds(version):
    kept = {aquamam.load(file).kind for file in FILES if file.parent.name == version}
    assert kept == set(KINDS)


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Path:
    """A hub whose repositories are folders."""
    root = tmp_path / "hub"

    def upload_folder(*, repo_id, folder_path, commit_message):
        shutil.copytree(folder_path, root / repo_id)

    def snapshot_download(repo, *, revision, token, allow_patterns):
        if not (root / repo).is_dir():
            raise OSError("404 Client Error.\nRepository Not Found")
        return str(root / repo)

    api = SimpleNamespace(create_repo=lambda repo, **options: f"https://hub/{repo}", upload_folder=upload_folder)
    library = SimpleNamespace(HfApi=lambda token: api, snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", library)
    return root


def test_a_model_and_its_mesh_come_back_from_a_folder_and_from_the_hub(tmp_path, hub):
    cube, model = solid("cube").mesh, tiny("stem")
    model.learn(data={"objects": [{"name": "my part", "mesh": cube.hash}]})
    aquamam.save_model(model, tmp_path / "fitted")
    write_mesh(cube, tmp_path / "fitted" / "mesh.npz")
    assert json.loads((tmp_path / "fitted" / "config.json").read_text())["config"]["bins"] == 30
    fitted = aquamam.load(tmp_path / "fitted")
    assert not fitted.training
    assert fitted.push_to_hub("someone/part") == "https://hub/someone/part"
    for place in (fitted.save_pretrained(tmp_path / "mine"), "someone/part"):
        again = aquamam.AQuaMaM.from_pretrained(place)
        assert again.config == model.config
        assert known_object(again).mesh.hash == cube.hash
        assert all(torch.equal(a, b) for a, b in zip(model.state_dict().values(), again.state_dict().values()))
    files = {file.name for file in (hub / "someone" / "part").iterdir()}
    assert files == {"README.md", "config.json", "model.safetensors", "mesh.npz"}


def test_the_card_tells_data_recipe_figures_and_limits(tmp_path):
    card = (aquamam.load("die").save_pretrained(tmp_path) / "README.md").read_text()
    assert card.startswith("---\nlibrary_name: aquamam\n")
    for told in ("Photograph-like renders of die", "| optimizer | muon |", "share within 15°", "typicality", "poses"):
        assert told in card
    bare = (make_model("bingham", fresh=True).save_pretrained(tmp_path / "bare") / "README.md").read_text()
    assert "does not tell" in bare
    assert "not calibrated" in bare


def test_what_cannot_travel_is_told_in_a_sentence(tmp_path, hub, monkeypatch):
    other = make_model("bingham").save_pretrained(tmp_path / "other")
    refused("fetched from the hub .404 Client Error.", aquamam.AQuaMaM.from_pretrained, "someone/nothing")
    refused("no checkpoint", aquamam.AQuaMaM.from_pretrained, "../nothing")
    refused("kind bingham", aquamam.AQuaMaM.from_pretrained, other)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    refused(r"pip install 'aquamam\[hub\]'", aquamam.AQuaMaM.from_pretrained, "someone/part")
