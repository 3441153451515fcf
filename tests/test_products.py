"""Linear maps outside of autograd: equal to torch's own for any number of rows, and never a packed copy of weights that have changed."""

import copy
import gc

import pytest
import torch
from torch import nn

from aquamam.network import products

ROWS = [1, 31, 32, 197, 512, 513, 700]


@pytest.fixture
def layer() -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(48, 64)


def packed_linear(x: torch.Tensor, layer: nn.Linear) -> torch.Tensor:
    """The product with a packed weight, where this machine can pack."""
    with torch.no_grad():
        return products.linear(x, layer, again=True)


def packs(layer: nn.Linear) -> dict:
    return products._packs.get(layer.weight, {})


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("libraries", ["both", "onednn", "mkl", "neither"])
def test_products_equal_those_of_torch(layer, rows, libraries, monkeypatch):
    if libraries in ("onednn", "neither"):
        monkeypatch.setattr(products, "MKL", None)
    if libraries in ("mkl", "neither"):
        monkeypatch.setattr(products, "ONEDNN", None)
    x, base = torch.randn(rows, 48), torch.randn(rows, 64)
    kept = x.clone(), base.clone()
    with torch.no_grad():
        for again in (False, True, True):
            assert torch.allclose(products.linear(x, layer, again=again), layer(x), atol=1e-5)
            assert torch.allclose(products.linear(x[None], layer, again=again), layer(x)[None], atol=1e-5)
            assert torch.allclose(products.linear(x, layer, skip=16, again=again), layer(x)[:, 16:], atol=1e-5)
            assert torch.allclose(products.linear_gelu(x, layer, again=again), nn.functional.gelu(layer(x)), atol=1e-5)
            expected = base + layer(x)
            assert torch.allclose(products.plus_linear(base, x, layer, again=again), expected, atol=1e-5)
            over = base.clone()
            assert products.plus_linear(over, x, layer, again=again, in_place=True) is over
            assert torch.allclose(over, expected, atol=1e-5)
    assert torch.equal(x, kept[0])
    assert torch.equal(base, kept[1])


@pytest.mark.skipif(products.MKL is None, reason="this build of torch has no MKL, so nothing is packed")
def test_a_weight_is_packed_once_for_a_number_of_rows(layer):
    x = torch.randn(40, 48)
    first = packed_linear(x, layer)
    packed = packs(layer)[0, 40].tensor
    assert torch.equal(packed_linear(x, layer), first)
    assert packs(layer)[0, 40].tensor is packed
    for rows in range(41, 50):
        packed_linear(torch.randn(rows, 48), layer)
    assert len(packs(layer)) == products.KEPT
    assert torch.equal(packed_linear(x, layer), first)


CHANGES = {
    "in place": lambda layer: layer.weight.mul_(2),
    "through .data": lambda layer: layer.weight.data.mul_(2),
    "a new tensor": lambda layer: setattr(layer.weight, "data", layer.weight.data * 2),
    "a new parameter": lambda layer: setattr(layer, "weight", nn.Parameter(layer.weight * 2)),
    "loading": lambda layer: layer.load_state_dict({"weight": layer.weight * 2, "bias": layer.bias}),
    "an optimiser": lambda layer: torch.optim.SGD([layer.weight], 1.0).step(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_changed_weights_are_noticed(layer, change):
    x = torch.randn(40, 48)
    before = packed_linear(x, layer)
    with torch.no_grad():
        layer.weight.grad = -layer.weight.clone()
        CHANGES[change](layer)
        after = packed_linear(x, layer)
        assert torch.allclose(after, layer(x), atol=1e-5)
        assert not torch.allclose(after, before, atol=1e-2)


def test_packed_weights_stay_out_of_copies_and_files(layer):
    x = torch.randn(40, 48)
    packed_linear(x, layer)
    twin = copy.deepcopy(layer)
    assert not packs(twin)
    assert set(layer.state_dict()) == {"weight", "bias"}
    with torch.no_grad():
        twin.weight.zero_()
    assert torch.allclose(packed_linear(x, layer), layer(x), atol=1e-5)
    assert torch.allclose(packed_linear(x, twin), twin(x), atol=1e-5)


def test_packed_weights_go_with_their_weight():
    layer = nn.Linear(48, 64)
    gc.collect()
    before = len(products._packs)
    packed_linear(torch.randn(40, 48), layer)
    assert len(products._packs) == before + (products.MKL is not None)
    del layer
    gc.collect()
    assert len(products._packs) == before
