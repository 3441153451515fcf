"""Models travel as folders and through the hub, with a card; the hub is a folder here, and no network is asked."""

import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from registry import make_model, tiny

import aquamam
from aquamam.errors import InputError
from aquamam.rendering.known import known_object
from aquamam.rendering.meshes import write_mesh
from aquamam.rendering.solids import solid


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
    fitted = aquamam.load(tmp_path / "fitted")
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
    bare = (make_model("bingham").save_pretrained(tmp_path / "bare") / "README.md").read_text()
    assert "does not tell" in bare
    assert "not calibrated" in bare


def test_what_cannot_travel_is_told_in_a_sentence(tmp_path, hub, monkeypatch):
    other = make_model("bingham").save_pretrained(tmp_path / "other")
    refused = {"someone/nothing": "fetched from the hub .404 Client Error.", "../nothing": "no checkpoint"}
    for place, told in {**refused, other: "kind bingham"}.items():
        with pytest.raises(InputError, match=told):
            aquamam.AQuaMaM.from_pretrained(place)
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match=r"pip install 'aquamam\[hub\]'"):
        aquamam.AQuaMaM.from_pretrained("someone/part")
