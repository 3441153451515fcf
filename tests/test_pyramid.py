"""Heads as sums of ever coarser rows: a change of parameters, and nothing else once they are folded."""

import pytest
import torch
from train_tiny import MODEL

from aquamam.network.model import AQuaMaM
from aquamam.training.pyramid import Pyramid, add_pyramids, folded


@pytest.mark.parametrize("fresh", [True, False])
def test_folding_changes_no_answer(fresh):
    torch.manual_seed(0)
    model = AQuaMaM(MODEL).eval()
    images = torch.rand((2, 3, MODEL.image_size, MODEL.image_size), generator=torch.Generator().manual_seed(1))
    before = model.posterior(images).first_log_probs().detach()
    add_pyramids(model, fresh=fresh)
    after = model.posterior(images).first_log_probs().detach()
    assert torch.allclose(before, after, atol=1e-6) != fresh  # one that has learnt goes on from where it is
    plain = folded(model)
    assert set(plain.state_dict()) == set(AQuaMaM(MODEL).state_dict())
    assert torch.allclose(plain.posterior(images).first_log_probs(), after, atol=1e-6)
    assert torch.equal(model.posterior(images).first_log_probs(), after)  # the model itself goes on learning


def test_a_coarse_row_moves_its_neighbours_in_its_own_chart_only():
    pyramid = Pyramid(2, 16)
    levels = [torch.zeros(2 * size, 3) for size in pyramid.sizes]
    levels[-1][1] = 1.0  # the second of four rows of the first chart
    whole = pyramid(*levels)
    assert whole.shape == (32, 3)
    assert float(whole[:16].max()) > 0.8
    assert float(whole[16:].abs().max()) == 0
    assert float(whole.sum()) == pytest.approx(3 * 16 / 4)
