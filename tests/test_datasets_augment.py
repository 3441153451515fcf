"""Augmentation changes pictures and rotations together, and each example by its own draws."""

import math
from dataclasses import replace

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


def test_the_window_of_a_part_moves_with_its_pixels():
    """A dot where the window says that the part is: after any change it is where the changed window says."""
    pixels = np.zeros((8, 3, 64, 64), np.uint8)
    pixels[:, :, 37:40, 43:46] = 255  # the middle at (0.195, 0.102) of the side, x right, y down
    batch = replace(batch_of(pixels), windows=torch.tensor([0.1953, 0.1016, 0.3]).expand(8, 3))
    moved = changed(batch, turn_deg=180.0, shift=0.1, scale=0.2)
    for image, window in zip(moved.images.float().mean(1), moved.windows):
        y, x = ((image * axis).sum() / image.sum() for axis in torch.meshgrid(*[torch.arange(64)] * 2, indexing="ij"))
        found = torch.stack([x, y]) / 64 + 0.5 / 64 - 0.5
        assert torch.allclose(found, window[:2], atol=0.01)
        assert image.sum().log() - batch.images[0].float().mean(0).sum().log() == pytest.approx(
            2 * (window[2] - 0.3), abs=0.25
        )


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


SQUARE = batch_of(np.pad(np.full((40, 3, 9, 9), 255, np.uint8), ((0, 0), (0, 0), (28, 28), (28, 28))))  # on black


def mass(images: torch.Tensor) -> torch.Tensor:
    return images[:, 0].double().sum((1, 2)) / 255


def offset(images: torch.Tensor) -> torch.Tensor:
    """How far the middle of what is white is from that of the image, along x."""
    images = images[:, 0].double()
    return (images.sum(1) @ torch.arange(65.0).double() / images.sum((1, 2)) - 32).abs()


def spread(images: torch.Tensor) -> torch.Tensor:
    return images.double().std((1, 2, 3)) / 255


def hidden(images: torch.Tensor) -> torch.Tensor:
    return (images != 128).any(1).double().mean((1, 2))


NOISE = batch_of(np.random.default_rng(0).integers(0, 256, (20, 3, 32, 32), dtype=np.uint8))  # of spread 0.29
SIZES = [  # a setting, what it is tried on, what is measured, and where the least and the largest lie
    ({"shift": 0.2}, SQUARE, offset, (0, 3), (5, 13.05)),
    ({"shift": 0.2}, SQUARE, mass, (79.4, 81), (81, 82.6)),
    ({"scale": 0.2}, SQUARE, offset, (0, 0.05), (0, 0.05)),
    ({"scale": 0.2}, SQUARE, mass, (81 / 1.3**2, 75), (90, 81 * 1.3**2)),
    ({"noise": 0.1}, flat(128, n=60), spread, (0, 0.05), (0.08, 0.105)),
    ({"blur": 0.05}, NOISE, spread, (0, 0.12), (0, 0.295)),
    ({"brightness": 0.2}, flat(128, n=60), torch.Tensor.double, (75, 90), (166, 180)),
    ({"colour": 0.5}, flat(100, n=60), torch.Tensor.double, (66, 75), (135, 150)),
    ({"contrast": 0.5}, flat(128), torch.Tensor.double, (128, 128), (128, 128)),
    ({"occluders": 2}, flat(128, n=80, size=48), hidden, (0, 0), (0.1, 1)),
    ({"turn_deg": 180.0, "shift": 0.1}, flat(77, n=8), torch.Tensor.double, (77, 77), (77, 77)),  # borders repeat
]


@pytest.mark.parametrize(("settings", "batch", "measure", "least", "most"), SIZES)
def test_a_change_has_the_size_asked_for(settings, batch, measure, least, most):
    found = measure(changed(batch, **settings).images)
    assert least[0] <= found.min() <= least[1]
    assert most[0] <= found.max() <= most[1]
