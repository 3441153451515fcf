"""Large encoders in machine code: the numbers of the layers, for any shape, input and number of threads, and never those of old weights."""

import hashlib
import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch
from onepass_check import SHAPES, layer_by_layer, layers, worst
from torch import nn

from aquamam.network import onepass
from aquamam.network.model import AQuaMaM, ModelConfig

needs_code = pytest.mark.skipif(onepass._region() is None, reason="this machine keeps to the libraries")


@pytest.fixture(autouse=True)
def small_is_large(monkeypatch):
    monkeypatch.setattr(onepass, "LARGE", 0)


@pytest.fixture
def blocks() -> nn.ModuleList:
    return layers(64, 2, 128)


def encode(blocks: nn.ModuleList, x: torch.Tensor) -> list[torch.Tensor]:
    """The state of [START], then the keys and values of all layers."""
    with torch.no_grad():
        whole = onepass.encode(blocks, x.clone())
    assert whole is not None
    return [whole[0], *(tensor for layer in whole[1] for tensor in layer)]


@needs_code
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("scale", [1e-3, 1.0, 300.0])
def test_one_pass_equals_layer_by_layer(shape, scale):
    assert worst(shape, scale) < 2e-5


@needs_code
def test_extreme_scores_stay_numbers(blocks):
    """Attention to one token alone, and GELU far out on both sides."""
    with torch.no_grad():
        for block in blocks:
            block.qkv.weight.mul_(300)
            block.linear1.weight.mul_(300)
    x = torch.randn(1, 37, 64)
    for got, want in zip(encode(blocks, x), layer_by_layer(blocks, x)):
        assert got.isfinite().all()
        assert (got - want).abs().max() < 1e-3 * want.abs().max()


@needs_code
def test_bits_do_not_depend_on_threads_or_company(blocks):
    x = torch.randn(5, 37, 64)
    want = encode(blocks, x)
    found: list[list[torch.Tensor]] = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(encode(blocks, x))
        others = [threading.Thread(target=lambda: found.append(encode(blocks, x))) for _ in range(4)]
        for other in others:
            other.start()
        for other in others:
            other.join()
    finally:
        torch.set_num_threads(1)
    assert len(found) == 7
    for got in found:
        assert all(torch.equal(a, b) for a, b in zip(got, want))
    alone = encode(blocks, x[3:4])
    assert torch.equal(alone[0][0], want[0][3])


CHANGES = {
    "in place": lambda layer: layer.weight.mul_(2),
    "through .data": lambda layer: layer.weight.data.mul_(2),
    "a new tensor": lambda layer: setattr(layer.weight, "data", layer.weight.data * 2),
    "a new parameter": lambda layer: setattr(layer, "weight", nn.Parameter(layer.weight * 2)),
    "a bias": lambda layer: setattr(layer, "bias", nn.Parameter(layer.bias + 1)),
    "a bias through .data": lambda layer: layer.bias.data.add_(1),
}


@needs_code
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("part", ["qkv", "out", "norm2", "linear1", "linear2"])
def test_changed_weights_are_noticed(blocks, part, change):
    x = torch.randn(1, 37, 64)
    before = encode(blocks, x)
    with torch.no_grad():
        CHANGES[change](getattr(blocks[0], part))
    after = encode(blocks, x)
    assert (after[0] - before[0]).abs().max() > 1e-3
    assert all((a - b).abs().max() < 1e-4 for a, b in zip(after, layer_by_layer(blocks, x)))


def test_libraries_serve_what_the_code_does_not(blocks, monkeypatch):
    x = torch.randn(1, 37, 64)
    assert onepass.encode(blocks, x) is None  # gradients may be asked for
    with torch.no_grad():
        assert onepass.encode(blocks.train(), x) is None
        blocks.eval()
        assert onepass.encode(blocks, x[:0]) is None
        assert onepass.encode(blocks, x.to("meta")) is None
        assert onepass.encode(layers(24, 2, 32), torch.randn(1, 5, 24)) is None  # not whole panels
        assert onepass.encode(layers(64, 2, 128).double(), x.double()) is None
        with torch.inference_mode():
            assert onepass.encode(layers(64, 2, 128), x) is None  # changes of these weights are not counted
        monkeypatch.setattr(onepass, "LARGE", 1 << 28)
        assert onepass.encode(blocks, x) is None


def test_a_change_of_the_vectors_changes_the_loops():
    """numba keeps machine code for as long as the file of the loops stays as it is; so that file must name what the routines were."""
    from aquamam.network import lanes

    now = hashlib.sha256(Path(lanes.__file__).with_name("vectors.py").read_bytes()).hexdigest()[:12]
    assert now == lanes.VECTORS, f'say VECTORS = "{now}" in lanes.py'


@needs_code
def test_models_use_it_and_keep_their_numbers(monkeypatch):
    torch.manual_seed(0)
    config = ModelConfig(bins=30, dim=128, heads=2, layers=3, hidden=256, image_size=16, patch_size=4)
    model = AQuaMaM(config).eval()
    images = torch.rand(3, 3, 16, 16)
    passes: list[int] = []
    run = onepass._run
    monkeypatch.setattr(onepass, "_run", lambda *told: passes.append(1) or run(*told))
    with torch.no_grad():
        mode = model(images).mode
        got = model(images).log_prob(mode)
        assert len(passes) == 6
        monkeypatch.setattr(onepass, "_region", lambda: None)
        assert torch.allclose(model(images).log_prob(mode), got, atol=1e-4)
        assert len(passes) == 6


@needs_code
def test_vectors_of_the_other_width_have_the_same_numbers(tmp_path):
    """Code for AVX-512 on a machine with AVX2, which splits its vectors, and the other way round."""
    check = Path(__file__).with_name("onepass_check.py")
    apart = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}  # such code is not for later
    done = subprocess.run([sys.executable, check], capture_output=True, text=True, check=False, env=apart)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout == "the same\n"
