"""Temperatures raise the held-out likelihood and change no prediction."""

import numpy as np
import pytest
import torch
from synthetic import KnownMixture
from train_tiny import MODEL

from aquamam.checkpoints.checkpoint import load, save_model
from aquamam.errors import InputError
from aquamam.network.model import AQuaMaM
from aquamam.posterior.calibration import Calibration
from aquamam.training.temperature import temper


class Redrawn(KnownMixture):
    """Rotations drawn from a model instead of the truth."""

    def __init__(self, model: AQuaMaM, length: int):
        super().__init__(split="valid", length=length)
        images = KnownMixture(length=length).batch(range(length)).images
        with torch.no_grad():
            self.drawn = model(images).sample(generator=torch.Generator().manual_seed(1)).double().numpy()

    def rotations(self, i: int) -> np.ndarray:
        return self.drawn[i, None]


@pytest.fixture
def model() -> AQuaMaM:
    torch.manual_seed(0)
    model = AQuaMaM(MODEL).eval()
    with torch.no_grad():
        for head in (model.head, model.first_head):
            head.weight.mul_(12)
    return model


def test_temperatures_that_were_put_in_are_taken_out(model, tmp_path):
    """Labels drawn from the model itself: whatever its temperatures are changed to, tempering finds the way back."""
    data = Redrawn(model, length=1500)
    images = data.batch(range(50)).images
    with torch.no_grad():
        predictions = model(images).mode
    model.calibration = Calibration(temperatures=(0.5, 1.6, 0.6))
    temper(model, data, 1500)
    assert model.calibration.temperatures[:3] == pytest.approx((1, 1, 1), abs=0.12)
    assert temper(model, data, 1500) == pytest.approx((1, 1, 1), abs=1e-3)
    save_model(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert again.calibration == model.calibration
    with torch.no_grad():
        assert torch.equal(again(images).mode, predictions)


@pytest.mark.parametrize("wrong", [{"temperatures": (1.0, 0.0, 1.0)}, {"floor": 1.0}, {"floor": -0.1}])
def test_bad_calibrations_get_one_clear_sentence(wrong):
    with pytest.raises(InputError, match="must be"):
        Calibration(**wrong)
