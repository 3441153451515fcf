"""Temperatures raise the held-out likelihood and change no prediction."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from synthetic import KnownMixture
from train_tiny import MODEL

from aquamam.training import temperature as tempering
from aquamam.checkpoints.checkpoint import load, save_model
from aquamam.data.renders import RenderedDataset
from aquamam.errors import InputError
from aquamam.evaluation.metrics import rotation_error
from aquamam.network.model import AQuaMaM
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid
from aquamam.training.temperature import (
    held_out_masses,
    held_out_tokens,
    looks,
    temper,
    temper_contrast,
    temper_coverage,
    unevenness,
)

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


def sure_model() -> AQuaMaM:
    torch.manual_seed(0)
    model = AQuaMaM(MODEL).eval()
    with torch.no_grad():
        for head in (model.head, model.first_head):
            head.weight.mul_(12)
    return model


@pytest.mark.parametrize("aim", ["likelihood", "coverage"])
def test_factors_that_were_put_in_are_taken_out(aim):
    """Labels drawn from the model itself: whatever its sharpness is changed to, tempering finds the way back."""
    model = sure_model()
    data = Redrawn(model, length=1500)
    model.config = replace(model.config, sharpness=SHARP)
    temper(model, data, 1500, aim=aim)
    assert model.config.sharpness == pytest.approx((1, 1, 1), rel=0.1)


def test_coverage_is_found_from_far_away(monkeypatch):
    """One measurement reaches a factor of 1.1; it goes on from there."""
    monkeypatch.setattr(tempering, "TRUTHS", 1)
    monkeypatch.setattr(tempering, "DRAWS", 50)
    model = sure_model()
    data = Redrawn(model, length=1000)
    model.config = replace(model.config, sharpness=(1.35, 1.35, 1.35))
    factor = temper_coverage(model, looks(data, 1000))
    assert factor == pytest.approx(1 / 1.35, rel=0.1)
    assert model.config.sharpness == pytest.approx((1, 1, 1), rel=0.1)


@pytest.fixture(scope="module")
def misshapen() -> tuple[AQuaMaM, Redrawn]:
    """A model that is too sure near the top of its distributions and not sure enough far below it, and data that show it."""
    model = sure_model()
    model.config = replace(model.config, contrast=(0.3, 1.0, 3.0))
    data = Redrawn(model, length=1000)
    model.config = replace(model.config, contrast=(1.0, 1.0, 1.0))
    return model, data


def test_the_shape_of_distributions_is_mended_by_contrast_and_not_by_a_factor(misshapen, monkeypatch):
    monkeypatch.setattr(tempering, "TRUTHS", 1)  # these images have no more
    model, data = misshapen
    images = looks(data, 1000)
    mode = model(images[0].images).mode
    temper(model, data, 1000)
    temper_coverage(model, images)
    factor_alone = unevenness(held_out_masses(model, images))
    slopes = temper_contrast(model, images)
    assert slopes == model.config.contrast
    assert slopes[0] < slopes[1] < slopes[2]
    assert unevenness(held_out_masses(model, images)) < 0.6 * factor_alone
    assert torch.equal(model(images[0].images).mode, mode)


def test_the_other_temperatures_start_from_plain_logits(misshapen):
    model, data = misshapen
    model.config = replace(model.config, contrast=(0.3, 1.0, 3.0))
    temper(model, data, 200)
    assert model.config.contrast == (1, 1, 1)


def test_looks_spread_truths_over_a_symmetry():
    data = RenderedDataset(solid("cylinder"), RenderSettings(size=8), split="valid", length=60)
    images = looks(data, 60, skip=50)
    assert [look.truths.shape for look in images] == [(8, 10, 4)]
    batch = data.batch(range(50, 60))
    error = rotation_error(images[0].truths, batch.rotations.double(), data.symmetry("cylinder"))
    assert error.max() < 1e-3
    apart = rotation_error(images[0].truths[:1].expand(7, -1, -1), images[0].truths[1:, :, None])
    assert apart.min() > 0.01


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


def test_certainty_depends_on_the_state():
    """A model that is too sure of half of its contexts and too unsure of the others: one number cannot mend it, a state's factor can."""
    model = sure_model()
    data = Redrawn(model, length=3000)
    images, truth = data.batch(range(3000)).images, torch.from_numpy(data.drawn)
    with torch.no_grad():
        right = model(images).log_prob(truth).mean()
        for k, token in enumerate(held_out_tokens(model, data, 500)):
            states = token.states - token.states.mean(0)
            weight = torch.linalg.svd(states, full_matrices=False)[2][0]
            weight = 0.7 * weight / (states @ weight).std()
            model.certainty = model.certainty or model.add_certainty()
            model.certainty.weight[k], model.certainty.bias[k] = weight, -(token.states.mean(0) @ weight)
        spoilt = model(images).log_prob(truth).mean()
        mode = model(images[:3]).mode
    model.config = replace(model.config, certainty=True)
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    temper(model, data, 3000)
    with torch.no_grad():
        plain = model(images).log_prob(truth).mean()
        model.load_state_dict(kept)
        model.config = replace(model.config, sharpness=(1.0, 1.0, 1.0))
        temper(model, data, 3000, certainty=True)
        mended = model(images).log_prob(truth).mean()
        assert spoilt < right - 0.1
        assert right - mended < 0.3 * (right - plain)
        assert torch.equal(model(images[:3]).mode, mode)


def test_certainty_is_saved(tmp_path):
    torch.manual_seed(0)
    model = AQuaMaM(MODEL).eval()
    data = KnownMixture(split="valid", length=200)
    temper(model, data, 200, certainty=True)
    again = load(save_model(model, tmp_path / "model.safetensors"))
    batch = data.batch(range(8))
    with torch.no_grad():
        assert torch.equal(
            again(batch.images).log_prob(batch.rotations[:, 0]), model(batch.images).log_prob(batch.rotations[:, 0])
        )
