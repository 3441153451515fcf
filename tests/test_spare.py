"""Memory that is given out again: never while somebody holds it, and never more than a little of it."""

import gc

import pytest
import torch

from aquamam.network import spare


@pytest.fixture(autouse=True)
def nothing_kept(monkeypatch):
    monkeypatch.setattr(spare, "_blocks", [])


def test_memory_comes_again_once_it_is_free():
    x = spare.empty(3, 5)
    address = x.data_ptr()
    del x
    assert spare.empty(3, 5).data_ptr() == address
    assert spare.empty(15).data_ptr() == address  # another shape of the same size


@pytest.mark.parametrize(
    "alias",
    [
        lambda x: x[1:],
        lambda x: x.detach(),
        lambda x: x.numpy()[2:],
        lambda x: x.untyped_storage(),
        lambda x: [x.transpose(0, 1).unbind()[-1]],
        lambda x: torch.nn.Parameter(x),
    ],
)
def test_memory_that_any_view_holds_is_not_given_out(alias):
    x = spare.empty(4, 6)
    x.fill_(7)
    held = alias(x)
    address = x.data_ptr()
    del x
    gc.collect()
    others = [spare.empty(4, 6).fill_(1) for _ in range(3)]
    assert address not in [other.data_ptr() for other in others]
    del held
    gc.collect()
    del others
    assert address in [spare.empty(4, 6).data_ptr(), *(b.memory.ctypes.data for b in spare._blocks)]


def test_a_graph_holds_its_memory():
    x, w = spare.empty(4).fill_(2), torch.ones(4, requires_grad=True)
    loss = (w * x).sum()
    del x
    spare.empty(4).fill_(9)
    loss.backward()
    assert w.grad is not None
    assert w.grad.tolist() == [2, 2, 2, 2]


def test_inference_tensors_and_others_may_follow_each_other():
    with torch.inference_mode():
        x = spare.empty(8).fill_(1)
    assert x.is_inference()
    del x
    y = spare.empty(8).fill_(3)
    assert not y.is_inference()
    assert (y.requires_grad_() * 2).sum().item() == 48


def test_no_more_is_kept_than_is_allowed(monkeypatch):
    monkeypatch.setattr(spare, "BYTES", 4 * 100)
    held = [spare.empty(40) for _ in range(4)]  # two of them are kept
    assert sum(len(b.memory) for b in spare._blocks) == 4 * 80
    del held
    spare.empty(60)  # a free one makes room
    assert sorted(len(b.memory) for b in spare._blocks) == [4 * 40, 4 * 60]
    assert spare.empty(101).shape == (101,)
    assert len(spare._blocks) == 2
    assert spare.empty(0, 5).shape == (0, 5)


def test_memory_is_aligned():
    assert all(spare.empty(n).data_ptr() % spare.ALIGNED == 0 for n in (1, 7, 1000))
