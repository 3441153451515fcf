"""Temperatures raise the held-out likelihood and change no prediction."""

import torch
from synthetic import KnownMixture
from train_tiny import MODEL

from aquamam.model import AQuaMaM
from aquamam.tempering import temper


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
        assert factors["head"] > 1.5
        assert after > before
        assert torch.equal(model(batch.images[:2]).mode, mode)
        again = temper(model, data, 600)
    assert all(abs(factor - 1) < 0.02 for factor in again.values())
