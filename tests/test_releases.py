"""Models of every kind that a release could save load today, and say what they said then.

`tests/releases/VERSION` holds tiny models with untrained weights and, in `log_densities.json`, what they gave.
"""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

import aquamam
from aquamam.checkpoints.checkpoint import KINDS

RELEASES = Path(__file__).parent / "releases"
FILES = sorted(RELEASES.rglob("*.safetensors"))
QUATERNIONS = torch.tensor([[1.0, 2, 3, 4], [-4, 3, -2, 1], [0, 0, 0, 1], [5, -5, 5, 5]])  # not of length one yet


def log_densities(file: Path) -> Tensor:
    """Of four rotations (rows) for two inputs that need no random numbers."""
    model = aquamam.load(file)
    config, q = model.config, torch.nn.functional.normalize(QUATERNIONS, dim=-1)[:, None]
    if "category" in (getattr(config, "embedding", ""), getattr(config, "encoder", "")):
        inputs = torch.arange(2)
    else:
        inputs = torch.linspace(0, 1, 2 * config.channels * config.image_size**2)
        inputs = inputs.reshape(2, config.channels, config.image_size, config.image_size)
    with torch.no_grad():
        return model(inputs).log_prob(q.expand(4, 2, 4))


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parent.name}-{file.stem}")
def test_a_released_checkpoint_gives_the_densities_that_it_gave(file):
    then = json.loads((file.parent / "log_densities.json").read_text())[file.stem]
    assert log_densities(file).tolist() == [pytest.approx(row, abs=2e-3) for row in then]


@pytest.mark.parametrize("version", sorted(path.name for path in RELEASES.iterdir()))
def test_a_release_is_kept_with_all_its_kinds(version):
    kept = {aquamam.load(file).kind for file in FILES if file.parent.name == version}
    assert kept == set(KINDS)
