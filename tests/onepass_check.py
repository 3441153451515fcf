"""Layers for test_onepass.py; run as a program, it compares them under vectors of the width that this machine would not choose."""

import torch
from torch import nn

# (dim, heads, hidden, tokens, images): whole panels in all but the tokens
SHAPES = [(64, 2, 128, 37, 2), (128, 4, 96, 13, 1), (64, 1, 64, 65, 1), (96, 3, 32, 1, 3), (512, 8, 2048, 50, 1)]


def layers(dim: int, heads: int, hidden: int, count: int = 3) -> nn.ModuleList:
    from aquamam.network.layers import Block

    torch.manual_seed(0)
    blocks = nn.ModuleList(Block(dim, heads, hidden, 0.1) for _ in range(count)).eval()
    with torch.no_grad():
        for p in blocks.parameters():
            p.copy_(torch.randn_like(p) * (0.3 if p.ndim == 1 else 1.5 / p.shape[1] ** 0.5))
    return blocks


def layer_by_layer(blocks: nn.ModuleList, x: torch.Tensor) -> list[torch.Tensor]:
    """In double precision, by torch: the state of [START], then the keys and values of all layers."""
    kept = []
    with torch.no_grad():
        blocks.double()
        x = x.double()
        for i, block in enumerate(blocks):
            x, keys_values = block.prefix(x, last=i == len(blocks) - 1)
            kept += list(keys_values)
        blocks.float()
    return [x[:, -1], *kept]


def worst(shape: tuple[int, ...], scale: float) -> float:
    """The largest difference, relative to the largest number."""
    from aquamam.network import onepass

    dim, heads, hidden, tokens, images = shape
    blocks = layers(dim, heads, hidden)
    x = torch.randn(images, tokens, dim) * scale
    with torch.no_grad():
        whole = onepass.encode(blocks, x.clone())
    assert whole is not None
    got = [whole[0], *(tensor for layer in whole[1] for tensor in layer)]
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(got, layer_by_layer(blocks, x)))


def main() -> None:
    from llvmlite import binding

    real = binding.get_host_cpu_features()
    wide = bool(real.get("avx512f", False))

    class Other(type(real)):  # type: ignore[misc]
        """The machine as it is for the compiler, and as it is not for us."""

        def get(self, name, default=None):
            return not wide if name.startswith("avx512") else super().get(name, default)

    binding.get_host_cpu_features = lambda: Other(real)
    from aquamam.network import onepass
    from aquamam.network import vectors

    assert {True: 8, False: 16}[wide] == vectors.LANES
    onepass.LARGE = 0
    assert all(worst(shape, 1.0) < 2e-5 for shape in SHAPES)
    print("the same")


if __name__ == "__main__":
    main()
