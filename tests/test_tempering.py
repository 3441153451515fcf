"""Temperatures raise the held-out likelihood and change no prediction."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from synthetic import KnownMixture
from train_tiny import MODEL

from aquamam.errors import InputError
from aquamam.model import AQuaMaM
from aquamam.tempering import temper

SHARP = (2.0, 0.6, 1.7)


class Redrawn(KnownMixture):
    """Rotations drawn from a model instead of the truth."""

    def __init__(self, model: AQuaMaM, length: int):
        super().__init__(split="valid", length=length)
        images = KnownMixture(length=length).batch(range(length)).images
        with torch.no_grad():
            self.drawn = model(images).sample(generator=torch.Generator().manual_seed(1)).double().numpy()

    def rotations(self, i: int) -> np.ndarray:
        return self.drawn[i, None]


@pytest.mark.parametrize("aim", ["likelihood", "coverage"])
def test_factors_that_were_put_in_are_taken_out(aim):
    """Labels drawn from the model itself: whatever its sharpness is changed to, tempering finds the way back."""
    torch.manual_seed(0)
    model = AQuaMaM(MODEL).eval()
    with torch.no_grad():
        for head in (model.head, model.first_head):
            head.weight.mul_(12)
    data = Redrawn(model, length=1500)
    model.config = replace(model.config, sharpness=SHARP)
    temper(model, data, 1500, aim=aim)
    assert model.config.sharpness == pytest.approx((1, 1, 1), rel=0.1)


def test_bad_aims_are_told():
    with pytest.raises(InputError, match="likelihood or coverage"):
        temper(AQuaMaM(MODEL), KnownMixture(length=4), aim="fame")


def test_an_unsure_model_becomes_likelier_and_predicts_the_same():
    torch.manual_seed(0)
    model = AQuaMaM(MODEL).eval()
    data = KnownMixture(split="valid", length=600)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(60):
        batch = KnownMixture().batch(range(64 * step, 64 * step + 64))
        optimizer.zero_grad()
        model.loss(batch.images, batch.rotations.transpose(0, 1)).backward()
        optimizer.step()
    with torch.no_grad():
        model.head.weight.mul_(0.3)
        model.head.bias.mul_(0.3)
        batch = data.batch(range(600))
        before = model(batch.images).log_prob(batch.rotations[:, 0]).mean()
        mode = model(batch.images[:2]).mode
        factors = temper(model, data, 600)
        after = model(batch.images).log_prob(batch.rotations[:, 0]).mean()
        assert min(factors["second"], factors["third"]) > 1.5
        assert after > before
        assert torch.equal(model(batch.images[:2]).mode, mode)
        again = temper(model, data, 600)
    assert all(abs(factor - 1) < 0.02 for factor in again.values())
