"""BOP's data and ours: crops, poses and metrics agree."""

import json
import math

import numpy as np
import pytest
from scenes import RADIUS, bop_folder, pose_model

from aquamam.checkpoints.checkpoint import save_model
from aquamam.cli.main import main
from aquamam.data.loaders.bop import BopDataset
from aquamam.geometry.camera import crop_camera
from aquamam.network.poses import Part, part_of
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid


@pytest.fixture
def folder(tmp_path):
    return bop_folder(tmp_path / "bop")


@pytest.fixture
def checkpoint(tmp_path):
    return save_model(pose_model(), tmp_path / "parts" / "die")


def test_a_crop_shows_the_part_as_a_camera_that_looks_at_it_does(folder):
    """The crop of a photograph taken sideways is a render about the optical axis under the loader's rotation, shifted
    and scaled as the loader's window says."""
    data = BopDataset(folder, "test", size=48, part=Part(radius=RADIUS))
    for i, one in enumerate(data.instances):
        crop, batch = crop_camera(one.box, one.camera), data.batch([i])
        x, y, b = batch.windows[0].tolist()
        distance = RADIUS * crop.focal / (crop.side * 0.45 * math.exp(b))
        settings = RenderSettings(
            size=240,
            distance=distance,
            fov_deg=2 * math.degrees(math.atan(crop.side * 2.5 / crop.focal)),
            supersample=4,
        )
        wide = render(solid("die").mesh, batch.rotations[0].numpy(), settings)[0].astype(float)  # of five sides
        left, top = 120 - 24 - round(48 * x), 120 - 24 - round(48 * y)
        straight = wide[top : top + 48, left : left + 48]
        shown = batch.images[0].permute(1, 2, 0).numpy().astype(float)
        assert np.abs(shown - straight).mean() < 12
        assert np.corrcoef(shown.ravel(), straight.ravel())[0, 1] > 0.95


def test_a_fitted_part_is_judged_on_bops_photographs(folder, checkpoint, capsys):
    arguments = ["evaluate", str(checkpoint), "--data", str(folder), "--samples", "3", "--quiet", "--json"]
    assert main([*arguments, "--object", "7", "--min-visible", "0.6"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["images"] == 3
    assert told["data"].endswith("split test, object 7, at least 60% visible")
    assert main(arguments) == 2
    assert "--object 9" in capsys.readouterr().err
    assert main([*arguments, "--object", "4"]) == 2
    assert "has the objects 7, not 4" in capsys.readouterr().err
    assert main(["evaluate", str(checkpoint), "--object", "7"]) == 2
    assert "give their folder with --data" in capsys.readouterr().err


def test_models_say_how_large_their_part_is():
    model = pose_model()
    assert part_of(model) == Part(radius=RADIUS, unit="mm")
    model.learn(part={"scale": 0.01, "centre": [1, 2, 3]})  # as version 0.1 wrote it
    assert part_of(model) == Part(radius=100 * math.sqrt(3), centre=(1.0, 2.0, 3.0))
    model.learn(part={"name": "bracket"})
    assert part_of(model) is None
