"""The physically based pictures of the die show what is said of them, and a command judges models on them."""

import json

import numpy as np
import pytest
import torch
from networks import tiny_model
from PIL import Image
from scipy.spatial.transform import Rotation

from aquamam.checkpoints.checkpoint import save_model
from aquamam.data.loaders.photoreal import BUNDLED, PhotorealDataset
from aquamam.data.open import open_dataset
from aquamam.rendering.solids import solid

DIE = solid("die").mesh
CUBE = Rotation.create_group("O").as_quat()
SIDE = 32  # pixels at which pictures and renders are compared


@pytest.fixture(scope="module")
def data():
    return PhotorealDataset()


def redness(image):
    """How red each pixel is, whatever the light's strength: paint is red, pips and most surroundings are not."""
    image = image.astype(float)
    return ((image[..., 0] - image[..., 1:3].mean(-1)) / (image.sum(-1) + 60)).ravel()


def test_a_picture_is_of_its_rotation_and_window(data):
    """Of the 24 ways to lay a die into the same outline, the one listed fits the red and white of the picture best, but
    where glare or a slanting side hides the pips; and other pictures' renders fit worse: the window is where it says."""
    best, fits, others = 0, [], []
    for i in range(0, len(data), 5):
        q, k = data.rotations(i)[0], (i + 7) % len(data)
        picture = Image.fromarray(data.image(i)).resize((SIDE, SIDE), Image.Resampling.BOX)
        laid = (Rotation.from_quat(q) * Rotation.from_quat(CUBE)).as_quat()
        renders = [*data.plain(i, np.concatenate([q[None], laid]), SIDE), *data.plain(k, data.rotations(k)[:1], SIDE)]
        own, *relaid, other = (np.corrcoef(redness(np.asarray(picture)), redness(r))[0, 1] for r in renders)
        best += own >= max(relaid) - 1e-3
        fits.append(own)
        others.append(other)
    assert best >= 0.8 * len(fits)  # by chance one in 24
    assert np.median(fits) > 0.85
    assert np.mean(np.array(fits) > others) > 0.95


def test_the_pictures_are_300_of_the_die_as_it_is_rendered(data):
    assert data.facts["mesh"] == DIE.hash
    assert [data.labels.count(label) for label in data.classes] == [100, 200]
    assert set(data.labels[:3]) == set(data.classes)  # a few show both
    assert {data.row(i)["light"] for i in range(300)} == {"sun and sky", "room", "landscape"}
    assert sum(path.stat().st_size for path in BUNDLED.iterdir()) < 2.5e6


def test_examples_list_the_rotations_of_their_view_and_their_window(data):
    batch = data.batch(range(300))
    alone = data.batch([17])
    assert torch.equal(alone.images[0], batch.images[17])
    assert torch.equal(alone.windows[0], batch.windows[17])
    assert torch.allclose(batch.rotations.norm(dim=-1), torch.ones(()).double())
    assert (batch.rotations[..., 3] >= 0).all()
    assert set(batch.counts.tolist()) >= {1, 2}  # few show one face alone
    centred = torch.tensor([label == "centred" for label in batch.labels])
    assert (batch.windows[centred, :2] == 0).all()
    assert batch.windows[centred, 2].abs().max() < 0.01  # the paper's camera is the nominal window
    assert (batch.windows[~centred].std(0) > 0.04).all()  # shifts of up to a tenth of the box are 0.046 of the crop
    assert torch.equal(open_dataset(BUNDLED, "test").batch(range(9)).images, batch.images[:9])
    assert open_dataset(BUNDLED, "test", size=32).batch([4, 5]).images.shape == (2, 3, 32, 32)


def test_the_command_gives_a_row_for_each_framing(tmp_path, prints, refuses):
    save_model(tiny_model(image_size=8, stem=(8,), stem_blocks=(0,)), tmp_path / "model.safetensors")
    words = ["evaluate", tmp_path / "model.safetensors", "--photoreal", "--quiet", "--samples", 3]
    text = prints(*words, "--count", 6)
    assert "6 images: physically based pictures of a die at 8 px" in text
    assert [line.split()[1] for line in text.splitlines() if line.startswith(("centred", "detector"))] == ["2", "4"]
    told = json.loads(prints(*words, "--count", 6, "--json", "--out", tmp_path / "report"))
    assert told["classes"]["detector"]["images"] == 4
    assert "prediction_image" in (tmp_path / "report" / "evaluation.html").read_text()
    assert "--photoreal is a data set of its own" in refuses(*words, "--data", "render:die")
