"""Pictures as cameras take them: bytes are functions of rotation and key, and the window says where the part is."""

import numpy as np
import pytest
import torch
import trimesh
from PIL import Image
from scipy.spatial.transform import Rotation

from aquamam.data.photos import PhotoDataset
from aquamam.data.random import haar, words
from aquamam.errors import InputError
from aquamam.geometry.camera import NOMINAL
from aquamam.rendering.meshes import Mesh
from aquamam.rendering.photo import photo_scene, photograph
from aquamam.rendering.simplify import simplified
from aquamam.rendering.solids import solid

NUMBERS = np.arange(64, dtype=np.int64)
R = Rotation.from_quat(haar(0, "test", NUMBERS)).as_matrix()
KEYS = words(0, "test/keys", NUMBERS, 1)[:, 0]


@pytest.fixture(scope="module")
def taken():
    return photograph(solid("die").mesh, R, KEYS, side=32)


def test_a_picture_depends_on_its_rotation_and_key_alone(taken):
    some = [3, 11, 4]
    again = photograph(solid("die").mesh, R[some], KEYS[some], side=32)
    assert np.array_equal(again.images, taken.images[some])
    assert np.array_equal(again.windows, taken.windows[some])
    other = photograph(solid("die").mesh, R[some], KEYS[[0, 1, 2]], side=32)
    assert not np.array_equal(other.images, again.images)


def test_pictures_differ_in_light_and_place(taken):
    means = taken.images.mean((1, 2, 3))
    assert means.std() > 15
    assert 60 < means.mean() < 190
    assert np.ptp(taken.windows, axis=0).min() > 0.1
    assert np.abs(taken.windows[:, :2]).max() < 0.75


def test_a_part_that_differs_from_its_mesh_is_neither_moved_nor_larger_on_average(taken):
    """Only the outline differs: the same lights, and boxes that are as often larger as smaller."""
    other = photograph(solid("die").mesh, R, KEYS, side=32, mesh_error=0.1)
    difference = other.windows - taken.windows
    assert not np.array_equal(other.images, taken.images)
    assert np.array_equal(other.distances, taken.distances)
    assert 0.01 < difference[:, 2].std() < 0.1
    assert np.abs(difference.mean(0)).max() < 0.02
    with pytest.raises(InputError, match="mesh error"):
        PhotoDataset(solid("die"), 32, mesh_error=0.5)


def test_the_window_is_where_the_part_is(taken):
    """With a red part and grey surroundings, the middle of what is red is near the centre that the window tells."""
    red = taken.images[:, 0].astype(float) - taken.images[:, 1:].max(1)
    red = np.where(red > 40, red, 0)
    seen = red.sum((1, 2)) > 2000
    assert seen.sum() > 30
    place = (np.arange(32) + 0.5) / 32 - 0.5
    x = (red.sum(1) * place).sum(1)[seen] / red.sum((1, 2))[seen]
    y = (red.sum(2) * place).sum(1)[seen] / red.sum((1, 2))[seen]
    assert np.median(np.hypot(x - taken.windows[seen, 0], y - taken.windows[seen, 1])) < 0.06
    # and how much of the crop it fills follows from the apparent radius
    area = (red > 0).mean((1, 2))[seen]
    radius = NOMINAL * np.exp(taken.windows[seen, 2])
    assert np.corrcoef(area, radius**2)[0, 1] > 0.3


def test_fewer_triangles_keep_the_shape():
    sphere = solid("sphereX").mesh
    small = simplified(sphere, 500)
    assert len(small.faces) <= 500 or sphere.uv is not None
    assert np.allclose(np.ptp(small.vertices, axis=0), np.ptp(sphere.vertices, axis=0), rtol=0.15)


def test_a_data_set_of_photographs_is_the_same_however_it_is_shared_out(tmp_path):
    data = PhotoDataset([solid("die"), solid("cone")], 32, seed=3, split="train")
    whole = data.batch(range(10))
    parts = [data.batch([i]) for i in range(10)]
    assert torch.equal(whole.images, torch.cat([part.images for part in parts]))
    assert torch.equal(whole.windows, torch.cat([part.windows for part in parts]))
    assert whole.labels == ("die", "cone") * 5
    assert data.symmetry("cone") is not None
    Image.new("RGB", (80, 50), (0, 255, 0)).save(tmp_path / "green.png")
    green = PhotoDataset(solid("die"), 32, seed=3, backgrounds=tmp_path).batch(range(40)).images.float()
    border = torch.cat([green[..., 0, :], green[..., -1, :]], -1).mean(-1)
    assert (border[:, 1] > border[:, [0, 2]].amax(1) + 20).float().mean() > 0.4


def test_light_reaches_every_corner_of_a_convex_part_and_not_the_bottom_of_a_cup():
    for mesh, least in ((solid("die").mesh, 0.99), (solid("icosa").mesh, 0.95)):
        _, _, _, (directions, seen, ambient) = photo_scene(mesh, (150, 150, 150))
        assert ambient.min() > least
        assert 0.2 < seen.mean() < 0.95
        assert np.allclose(np.linalg.norm(directions, axis=1), 1)
    tube = trimesh.creation.annulus(0.8, 1.0, 2.0, sections=32)
    cup = trimesh.util.concatenate(
        [tube, trimesh.creation.cylinder(1.0, 0.1, sections=32).apply_translation([0, 0, -1])]
    )
    mesh = Mesh(vertices=np.array(cup.vertices), faces=np.array(cup.faces), name="cup")
    _, _, _, (_, _, ambient) = photo_scene(mesh, (150, 150, 150))
    corners = mesh.vertices[mesh.faces]
    outside, inside = np.hypot(*corners[..., :2].T).T > 0.95, np.hypot(*corners[..., :2].T).T < 0.85
    assert ambient[outside & (corners[..., 2] > 0.9)].mean() > ambient[inside & (corners[..., 2] < -0.9)].mean() + 0.3
