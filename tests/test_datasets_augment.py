"""Augmentation changes pictures and rotations together, and each example by its own draws."""

import math

import numpy as np
import pytest
import torch

from aquamam.data.augment import AMOUNTS, AUGMENTATIONS, AugmentSettings, augment, augment_pixels, augmentation
from aquamam.data.base import Batch
from aquamam.data.renders import RenderedDataset
from aquamam.geometry.rotations import geodesic_angle
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid

EVEN_LIGHT = RenderSettings(size=64, supersample=3, ambient=1.0, diffuse=0.0)  # turning the picture turns no light


def batch_of(images: np.ndarray, rotations: torch.Tensor | None = None) -> Batch:
    n = len(images)
    return Batch(
        images=torch.from_numpy(np.ascontiguousarray(images)),
        rotations=torch.eye(4, dtype=torch.float64)[3].expand(n, 1, 4) if rotations is None else rotations,
        counts=torch.ones(n, dtype=torch.int64),
        labels=("x",) * n,
        indices=tuple(range(n)),
    )


def flat(value: int, n: int = 4, size: int = 32) -> Batch:
    return batch_of(np.full((n, 3, size, size), value, np.uint8))


@pytest.fixture(scope="module")
def dice() -> Batch:
    return RenderedDataset(solid("die"), EVEN_LIGHT, seed=2).batch(range(12))


def changed(batch: Batch, seed: int = 0, **settings: float) -> Batch:
    positions = np.arange(len(batch))
    return augment(batch, AugmentSettings(**settings), seed=seed, positions=positions)


def test_a_turned_picture_is_the_picture_of_the_turned_rotation(dice):
    turned = changed(dice, turn_deg=180.0)
    again = render(solid("die").mesh, turned.rotations[:, 0].numpy(), EVEN_LIGHT).transpose(0, 3, 1, 2)
    error = np.abs(turned.images.numpy().astype(float) - again).mean((1, 2, 3))
    moved = np.abs(dice.images.numpy().astype(float) - again).mean((1, 2, 3))
    assert error.max() < 4  # grey levels: what interpolation costs at edges
    assert (error < moved / 3).all()
    assert geodesic_angle(turned.rotations, dice.rotations).max() > 1


def test_a_quarter_turn_is_exact_and_anticlockwise(dice):
    neutral = np.zeros(len(dice), AMOUNTS)
    neutral["scale"] = neutral["contrast"] = 1
    neutral["gain"] = 1
    images = dice.images.numpy()
    for quarters in range(4):
        neutral["turn"] = quarters * math.pi / 2
        out = augment_pixels(images, neutral)
        assert np.array_equal(out, np.rot90(images, quarters, axes=(2, 3)))


def test_whatever_does_not_turn_leaves_the_rotation_alone(dice):
    for name in ("shift", "scale", "brightness", "contrast", "colour", "blur", "noise"):
        after = changed(dice, **{name: 0.04})
        assert torch.equal(after.rotations, dice.rotations)
        assert not torch.equal(after.images, dice.images)
    assert torch.equal(changed(dice, occluders=3).rotations, dice.rotations)


def test_none_changes_nothing_and_nothing_changes_its_input(dice):
    before = dice.images.clone()
    assert augment(dice, augmentation("none"), seed=0, positions=np.arange(12)) is dice
    for settings in AUGMENTATIONS.values():
        augment(dice, settings, seed=0, positions=np.arange(12))
    assert torch.equal(dice.images, before)


def test_an_example_is_changed_by_its_position_alone(dice):
    whole = augment(dice, augmentation("strong"), seed=1, positions=np.arange(100, 112))
    part = batch_of(dice.images[[7]].numpy(), dice.rotations[[7]])
    alone = augment(part, augmentation("strong"), seed=1, positions=np.array([107]))
    assert torch.equal(alone.images[0], whole.images[7])
    assert torch.equal(alone.rotations[0], whole.rotations[7])
    other = augment(part, augmentation("strong"), seed=1, positions=np.array([108]))
    assert not torch.equal(other.images, alone.images)


def test_shift_and_scale_move_the_object_as_said():
    image = np.zeros((1, 3, 65, 65), np.uint8)
    image[:, :, 28:37, 28:37] = 255
    for name in ("shift", "scale"):
        out = changed(batch_of(np.repeat(image, 40, 0)), **{name: 0.2}).images[:, 0].double()
        mass = out.sum((1, 2)) / 255
        rows = torch.arange(65.0, dtype=torch.float64)
        offset = (out.sum(1) @ rows / out.sum((1, 2)) - 32).abs()
        if name == "shift":
            assert 5 < offset.max() <= 13.05
            assert torch.allclose(mass, torch.full_like(mass, 81), rtol=0.02)
        else:
            assert offset.max() < 0.05
            assert 81 / 1.3**2 < mass.min() < 75
            assert 90 < mass.max() < 81 * 1.3**2


def test_noise_blur_and_light_have_the_size_asked_for():
    noisy = changed(flat(128, n=60), noise=0.1).images.double()
    spread = noisy.std((1, 2, 3)) / 255
    assert spread.max() < 0.105
    assert spread.max() > 0.08
    assert abs(noisy.mean() - 128) < 1
    random = batch_of(np.random.default_rng(0).integers(0, 256, (20, 3, 32, 32), dtype=np.uint8))
    blurred = changed(random, blur=0.05).images.double()
    assert (blurred.std((1, 2, 3)) <= random.images.double().std((1, 2, 3)) + 1).all()
    assert blurred.std((1, 2, 3)).min() < 0.4 * random.images.double().std()
    light = changed(flat(128, n=60), brightness=0.2).images.double()
    assert 75 < light.min() < 90
    assert 166 < light.max() < 180
    assert torch.equal(changed(flat(128), contrast=0.5).images, flat(128).images)
    tinted = changed(flat(100, n=60), colour=0.5).images.double()
    assert 66 <= tinted.min() < 75
    assert 135 < tinted.max() <= 150


def test_occluders_cover_part_of_the_picture():
    out = changed(flat(128, n=80, size=48), occluders=2).images
    share = (out != 128).any(1).double().mean((1, 2))
    assert (share == 0).any()
    assert 0.02 < share.mean() < 0.5


def test_corners_repeat_the_border_where_no_ground_is_known():
    out = changed(flat(77, n=8), turn_deg=180.0, shift=0.1)
    assert (out.images == 77).all()


def test_settings_survive_json():
    for settings in AUGMENTATIONS.values():
        assert AugmentSettings.from_dict(settings.to_dict()) == settings
