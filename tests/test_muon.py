"""Muon's step evens out the singular directions, whatever the gradient's shape and size."""

import pytest
import torch
from torch import nn

from aquamam.training.optim import Muon, orthogonalise, suits_muon


@pytest.mark.parametrize("shape", [(24, 24), (16, 80), (80, 16)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(("precision", "error"), [(torch.float32, 0.05), (torch.bfloat16, 0.1)])
def test_singular_values_become_alike_and_directions_stay(shape, size, precision, error, generator):
    left, _ = torch.linalg.qr(torch.randn(shape[0], 16, generator=generator))
    right, _ = torch.linalg.qr(torch.randn(shape[1], 16, generator=generator))
    spectrum = torch.logspace(0, -1.5, 16)
    update = orthogonalise(size * (left * spectrum) @ right.T, precision)
    values = torch.linalg.svdvals(update)[:16]
    assert values.min() > 0.6
    assert values.max() < 1.3
    inside = left.T @ update @ right  # in the gradient's own directions it is diagonal
    assert (inside - torch.diag(inside.diagonal())).abs().max() < error
    assert inside.diagonal().min() > 0.6


def test_stacked_matrices_are_stepped_one_by_one(generator):
    parts = [nn.Parameter(torch.randn(16, 16, generator=generator)) for _ in range(3)]
    whole = nn.Parameter(torch.cat([p.detach() for p in parts]))
    whole.stacked = 3
    optimizer = Muon([{"params": [whole, *parts]}], lr=0.1, weight_decay=0.1)
    for _ in range(3):
        for part in parts:
            part.grad = torch.randn(16, 16, generator=generator)
        whole.grad = torch.cat([p.grad for p in parts])
        optimizer.step()
    assert torch.allclose(whole, torch.cat(parts), atol=1e-5)


def test_only_matrices_with_directions_suit():
    assert suits_muon(nn.Linear(32, 64))
    assert suits_muon(nn.Conv2d(16, 32, 3))
    assert not suits_muon(nn.Conv2d(3, 8, 4))  # eight rows
    assert not suits_muon(nn.Embedding(64, 64))
    assert not suits_muon(nn.LayerNorm(64))
