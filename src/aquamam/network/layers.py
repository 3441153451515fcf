"""The parts of the network: embeddings, and Transformer blocks that keep an image apart from the rotations that
follow it.

Under the partially causal mask the patch tokens and [START] never see a rotation token. So an image is encoded once
(`Block.encode`), and the tokens of any number of rotations attend to the keys and values that it left behind
(`Block.extend`).
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn


class KeysValues(NamedTuple):
    """Keys and values of one layer: of an image's tokens, which all its rotations share, or of each rotation's own."""

    keys: Float[Tensor, "batch heads *tokens head_dim"]
    values: Float[Tensor, "batch heads *tokens head_dim"]


def attend(
    query: Float[Tensor, "batch heads *rows head_dim"],
    image: KeysValues,
    own: KeysValues | None = None,
    mask: Float[Tensor, "steps total"] | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "batch heads *rows head_dim"]:
    r"""$\mathrm{softmax}(Q K^T / \sqrt{d}) V$ over an image's tokens and, with rows (rotations, steps), each
    rotation's own ones.

    The image's keys are never copied: all rotations of an image are rows of one matrix product. A rotation's own
    tokens are few, so theirs are sums of products instead of thousands of tiny matrix products.
    """
    if own is None:
        return F.scaled_dot_product_attention(query, image.keys, image.values, dropout_p=dropout)
    assert mask is not None
    rows, tokens = query.shape[2:4], image.keys.shape[2]
    query = query / math.sqrt(query.shape[-1])
    shared = query.flatten(2, 3) @ image.keys.mT
    private = (query[..., None, :] * own.keys[:, :, :, None]).sum(-1) + mask  # (batch, heads, rotations, steps, total)
    weights = F.dropout(torch.cat([shared, private.flatten(2, 3)], -1).softmax(-1), dropout, dropout > 0)
    mine = weights[..., tokens:].unflatten(2, rows)[..., None]
    attended = (weights[..., :tokens] @ image.values).unflatten(2, rows)
    return attended + (mine * own.values[:, :, :, None]).sum(-2)


class Block(nn.Module):
    """A pre-norm Transformer layer (exact GELU, norm eps 1e-6, as in the original)."""

    def __init__(self, dim: int, heads: int, hidden: int, dropout: float):
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.linear1 = nn.Linear(dim, hidden)
        self.linear2 = nn.Linear(hidden, dim)
        # three matrices in one, for optimisers that treat a matrix as a whole
        self.qkv.weight.stacked = 3  # type: ignore[attr-defined]
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def encode(
        self, x: Float[Tensor, "batch tokens dim"], read: slice = slice(None)
    ) -> tuple[Float[Tensor, "batch read dim"], KeysValues]:
        """Full attention among patch tokens and [START]; only the tokens that are read afterwards are computed."""
        query, key, value = map(self._split, self.qkv(self.norm1(x)).chunk(3, -1))
        image = KeysValues(key, value)
        return self._finish(x[:, read], attend(query[:, :, read], image, dropout=self.dropout * self.training)), image

    def extend(
        self,
        x: Float[Tensor, "batch rotations steps dim"],
        image: KeysValues,
        past: Float[Tensor, "batch rotations earlier twodim"] | None = None,
        mask: Float[Tensor, "steps total"] | None = None,
    ) -> tuple[Float[Tensor, "batch rotations steps dim"], Float[Tensor, "batch rotations total twodim"]]:
        """Rotation tokens, which see the image and, unless a mask says otherwise, the rotation's tokens up to
        themselves.

        Keys and values of all of the rotation's tokens so far are returned, to go on from there.
        """
        query, own = self.qkv(self.norm1(x)).split([x.shape[-1], 2 * x.shape[-1]], -1)
        if past is not None:
            own = torch.cat([past, own], 2)
        if mask is None:
            steps, total = x.shape[2], own.shape[2]
            mask = x.new_full((steps, total), -torch.inf).triu(total - steps + 1)
        tokens = KeysValues(*map(self._split, own.chunk(2, -1)))
        return self._finish(x, attend(self._split(query), image, tokens, mask, self.dropout * self.training)), own

    def _split(self, x: Float[Tensor, "batch *rows dim"]) -> Float[Tensor, "batch heads *rows head_dim"]:
        return x.unflatten(-1, (self.heads, -1)).movedim(-2, 1)

    def _finish(
        self, x: Float[Tensor, "batch *rows dim"], attended: Float[Tensor, "batch heads *rows head_dim"]
    ) -> Float[Tensor, "batch *rows dim"]:
        """What follows attention: its output layer and the MLP, each beside a skip."""
        x = x + F.dropout(self.out(attended.movedim(1, -2).flatten(-2)), self.dropout, self.training)
        hidden = F.dropout(F.gelu(self.linear1(self.norm2(x))), self.dropout, self.training)
        return x + F.dropout(self.linear2(hidden), self.dropout, self.training)


class Trunk(nn.Module):
    """What encodes an image: its embedding, [START], positions and blocks."""

    embed: nn.Module
    start: nn.Parameter
    position: nn.Parameter
    blocks: nn.ModuleList

    def encoded(self, images: Tensor) -> tuple[Float[Tensor, "batch dim"], list[KeysValues]]:
        """The last state of [START], and what every layer keeps of images in [-1, 1] or of categories."""
        x, layers = self.embed(images), []
        # shape[0], not len: the exporter would take a length for a constant
        x = torch.cat([x, self.start.expand(x.shape[0], 1, -1)], 1) + self.position[: x.shape[1] + 1]
        for block in self.blocks:
            last = block is self.blocks[-1]  # of which only [START] is read
            x, keys_values = block.encode(x, slice(-1, None) if last else slice(None))  # type: ignore[operator]
            layers.append(keys_values)
        return x[:, -1], layers


class ComponentEmbedding(nn.Module):
    r"""$g_{q_c}$: NeRF-like encoding $[q, \sin(2^l \pi q), \cos(2^l \pi q)]_{l<L}$, then an MLP of d/4, d/2, d."""

    def __init__(self, dim: int, octaves: int):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(1 + 2 * octaves, dim // 4),
            nn.GELU(),
            nn.Linear(dim // 4, dim // 2),
            nn.GELU(),
            nn.Linear(dim // 2, dim),
        )
        self.register_buffer("frequency", math.pi * 2.0 ** torch.arange(octaves), persistent=False)

    def forward(self, q: Float[Tensor, "*batch"]) -> Float[Tensor, "*batch dim"]:
        phase = q[..., None] * self.frequency  # type: ignore[operator]
        waves = torch.stack([phase.sin(), phase.cos()], -1).flatten(-2)
        return self.mlp(torch.cat([q[..., None], waves], -1))


class CategoryEmbedding(nn.Module):
    """The toy's stand-in for an image: a category becomes a whole sequence of patch embeddings."""

    def __init__(self, categories: int, tokens: int, dim: int):
        super().__init__()
        self.tokens = tokens
        self.table = nn.Embedding(categories, tokens * dim)

    def forward(self, category: Int[Tensor, "batch"]) -> Float[Tensor, "batch tokens dim"]:
        return self.table(category).unflatten(-1, (self.tokens, -1))


class PatchEmbedding(nn.Module):
    """ViT's: cut the image into patches, one linear map for all."""

    def __init__(self, channels: int, patch: int, dim: int):
        super().__init__()
        self.project = nn.Conv2d(channels, dim, patch, patch)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch tokens dim"]:
        """As a matrix product: a little quicker than the convolution that it is, and laid out for the next layer."""
        patch, (height, width) = self.project.kernel_size[0], images.shape[-2:]
        grid = images.unflatten(-1, (width // patch, patch)).unflatten(-3, (height // patch, patch))
        patches = grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (batch, tokens, channels * patch * patch)
        return F.linear(patches, self.project.weight.flatten(1), self.project.bias)


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions beside a skip."""

    def __init__(self, channels: int, norm: str):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm1 = NORMS[norm](channels)
        self.conv2 = nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.norm2 = NORMS[norm](channels)

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        return F.relu(x + self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))


class ConvStem(nn.Module):
    """Strided convolutions and residual blocks to a small grid of tokens: learns far faster than patches on little
    data.

    Stage i halves the resolution to `channels[i]` and then runs `blocks[i]` residual blocks.
    """

    def __init__(self, image_channels: int, channels: tuple[int, ...], blocks: tuple[int, ...], dim: int, norm: str):
        super().__init__()
        stages: list[nn.Module] = []
        for before, after, count in zip((image_channels, *channels), channels, blocks):
            stages += [nn.Conv2d(before, after, 4, 2, 1, bias=False), NORMS[norm](after), nn.ReLU()]
            stages += [ResidualBlock(after, norm) for _ in range(count)]
        self.stages = nn.Sequential(*stages)
        self.project = nn.Conv2d(channels[-1], dim, 1)

    def forward(self, images: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch tokens dim"]:
        # channels last is the faster layout for convolutions on CPUs and on tensor cores
        x = self.stages(images.contiguous(memory_format=torch.channels_last))
        return self.project(x).flatten(2).transpose(1, 2)


class SumOverProcesses(torch.autograd.Function):
    """The sum of every process's tensor; each process's loss depends on it, so gradients are summed likewise."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return SumOverProcesses.apply(grads[0])


class BatchNorm(nn.Module):
    """Batch norm with statistics of the whole batch, however many processes share it, on any backend."""

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, channels: int, momentum: float = 0.1, eps: float = 1e-5):
        super().__init__()
        self.momentum, self.eps = momentum, eps
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))

    def forward(self, x: Float[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
        if not (self.training and dist.is_initialized() and dist.get_world_size() > 1):
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.weight, self.bias, self.training, self.momentum, self.eps
            )
        count = x.numel() // x.shape[1] * dist.get_world_size()  # every process has as many images
        mean = SumOverProcesses.apply(x.float().sum((0, 2, 3))) / count
        centred = x.float() - mean[:, None, None]
        variance = SumOverProcesses.apply(centred.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), self.momentum)
        scale = self.weight * (variance + self.eps).rsqrt()
        return (centred * scale[:, None, None] + self.bias[:, None, None]).to(x.dtype)


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(channels, 8), channels)


# group norm treats each image by itself, in training too; batch norm learns about four times as fast (docs/log.md)
NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": BatchNorm, "group": _group_norm}


def normalise(images: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
    """uint8 or [0, 1] -> [-1, 1]: mean 0.5, standard deviation 0.5."""
    images = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    return torch.add(images.new_full((), -1.0), images, alpha=2)
