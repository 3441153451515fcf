"""Whether an image is like those of training: p-values that are uniform for such images and small for others."""

import torch
from networks import tiny_model
from scipy.stats import kstest

from aquamam.data import PhotoDataset
from aquamam.posterior.calibration import Calibration
from aquamam.rendering.solids import solid
from aquamam.training.typicality import find_typicality


def test_p_values_are_uniform_for_images_like_the_held_out_ones_and_small_for_others():
    model = tiny_model(bins=16, stem=(8, 16), hidden=32)
    find_typicality(model, PhotoDataset(solid("die"), 16, split="calibration", length=600))
    model.calibration = Calibration.from_dict(model.calibration.to_dict())  # as it is after a journey through a file
    images = PhotoDataset(solid("die"), 16, split="test", length=400).batch(range(400)).images
    with torch.no_grad():
        p = model(images).typicality
        odd = model((torch.arange(16) % 2 * 255).byte().expand(4, 3, 16, 16))
    assert p is not None
    assert kstest(p.numpy(), "uniform").statistic < 0.1  # 400 images against 300: two standard errors are 0.1
    assert odd.typicality.max() < 0.02
    assert odd.region(0.9, samples=40, calibration=False).abstain.all()


def test_models_without_held_out_images_know_no_typicality():
    assert tiny_model()(torch.zeros(2, 3, 16, 16)).typicality is None
