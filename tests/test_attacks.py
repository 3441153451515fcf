"""Whatever comes is refused in one sentence, without running code from it and without taking the memory."""

import resource
import shutil
from pathlib import Path

import pytest
from attacks.makers import FILES, HERE, NAMES, REQUESTS
from refusals import is_a_sentence, refused
from services import InProcess

import aquamam
from aquamam.checkpoints import checkpoint
from aquamam.checkpoints.checkpoint import check_digest
from aquamam.data.cameras import read_camera
from aquamam.data.detections import read_detections
from aquamam.network.images import read_image
from aquamam.rendering.meshes import load_mesh, read_mesh

# the end of a file's name -> what the package does with such a file
DOORS = {
    ".safetensors": aquamam.load,
    ".pt": aquamam.import_original,
    ".onnx.json": lambda path: aquamam.load(path.with_name("model.onnx")),
    ".png": read_image,
    **dict.fromkeys((".obj", ".gltf", ".stl", ".ply"), load_mesh),
    ".npz": read_mesh,
    ".yaml": lambda path: read_camera(str(path)),
    ".boxes.json": read_detections,
}
MEMORY = 400_000  # kB


@pytest.mark.parametrize("what", FILES)
def test_a_hostile_file_is_refused_in_a_sentence(what, tmp_path, capfd):
    end, make = FILES[what]
    path: Path = tmp_path / f"model{end.removeprefix('.onnx')}"
    path.write_bytes(make())
    shutil.copy(HERE / "outside.mtl", tmp_path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    refused("", DOORS[end], path)
    assert "code ran" not in "".join(capfd.readouterr())
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + MEMORY


@pytest.mark.parametrize("name", NAMES, ids=ascii)
def test_a_hostile_name_is_refused_in_a_sentence(name):
    refused("", aquamam.load, name)


@pytest.fixture(scope="module")
def service():
    with InProcess() as service:
        yield service


@pytest.mark.parametrize("what", REQUESTS)
def test_a_hostile_request_is_refused_in_a_sentence(what, service):
    path, body = REQUESTS[what]
    response = service.run(service.client.request("POST" if body else "GET", path, **body))
    assert 400 <= response.status_code < 500
    assert is_a_sentence(response.json()["detail"]), response.text


def test_bundled_weights_are_those_that_were_released(tmp_path, monkeypatch):
    for name in checkpoint.bundled():
        check_digest(checkpoint.resolve(name))
    shutil.copytree(checkpoint.BUNDLED, tmp_path / "weights")
    monkeypatch.setattr(checkpoint, "BUNDLED", tmp_path / "weights")
    weights = tmp_path / "weights" / "die.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\x00")
    refused("SHA-256", aquamam.load, "die")
