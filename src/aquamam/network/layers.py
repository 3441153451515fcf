"""The parts of the network: embeddings, and Transformer blocks that keep an image's prefix apart from the rotations that follow it.

Under the partially causal mask the patch tokens and [START] never see a rotation token. A block therefore has two entrances: `prefix` runs
once for an image, and `extend` runs the rotation tokens of any number of rotations against the keys and values it left behind.
"""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from aquamam.network import products
from aquamam.network import spare


class KeysValues(NamedTuple):
    """Keys and values of one image's prefix in one layer, shared by all rotations of that image."""

    keys: Float[Tensor, "batch heads tokens head_dim"]
    values: Float[Tensor, "batch heads tokens head_dim"]


# Hidden activations of the images that are encoded at once, in floats a thread: few enough to stay in cache and in memory that is already
# mapped, many enough that the weights are not read over and over.
CACHE_FLOATS = 1 << 20


def _recorded(x: Tensor) -> bool:
    """Whether somebody may ask for gradients or a graph; otherwise, on CPUs, results may be written in place."""
    recording = torch.is_grad_enabled() or torch.compiler.is_compiling() or torch.jit.is_tracing()
    return recording or x.device.type != "cpu" or x.dtype != torch.float32


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
        self.qkv.weight.stacked = 3  # type: ignore[attr-defined]  # three matrices in one, for optimisers that treat a matrix as a whole
        nn.init.xavier_uniform_(self.qkv.weight)
        nn.init.zeros_(self.qkv.bias)
        nn.init.zeros_(self.out.bias)

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)

    def _heads(self, x: Tensor) -> Tensor:
        """(..., tokens, dim) -> (..., heads, tokens, head_dim)"""
        return x.unflatten(-1, (self.heads, -1)).transpose(-3, -2)

    def _finish(self, x: Tensor, attended: Tensor, again: bool = False, in_place: bool = False) -> Tensor:
        if not self.unrecorded(x):
            x = x + self._drop(self.out(attended))
            return x + self._drop(self.linear2(self._drop(F.gelu(self.linear1(self.norm2(x))))))
        rows = products.plus_linear(x.flatten(0, -2), attended.flatten(0, -2), self.out, again=again, in_place=in_place)
        hidden = products.linear_gelu(self.norm2(rows), self.linear1, again=again)
        return products.plus_linear(rows, hidden, self.linear2, again=again, in_place=in_place).reshape(x.shape)

    def _qkv(self, y: Tensor, skip: int = 0, again: bool = False) -> Tensor:
        """Queries, keys and values, without the first `skip` numbers."""
        if self.unrecorded(y):
            return products.linear(y, self.qkv, skip=skip, again=again)
        return F.linear(y, self.qkv.weight[skip:], self.qkv.bias[skip:])

    def unrecorded(self, x: Tensor) -> bool:
        """Whether nobody will ask for gradients, a graph or dropout: then results may be written in place, a few images at a time."""
        return not (self.training or _recorded(x))

    def prefix(
        self, x: Float[Tensor, "batch tokens dim"], last: bool = False
    ) -> tuple[Float[Tensor, "batch outputs dim"], KeysValues]:
        """Full attention among patch tokens and [START]. In the last layer only [START] is read afterwards, so only it is computed.

        Where nobody asks for gradients, other layers write their result over x.
        """
        if not self.unrecorded(x):
            return self._prefix(x, last)
        x = x.contiguous()  # or rows of it would be copies, and what is written over them lost
        if len(x) == 1:
            return self._prefix(x, last, again=True, in_place=not last)
        # So few images at a time that activations stay in cache and in memory already mapped: only keys and values last. These are laid
        # out head by head, as the products of `extend` want them.
        batch, tokens, dim = x.shape
        out = x.new_empty(batch, 1, dim) if last else x
        keys, values = spare.empty(2, batch, self.heads, tokens, dim // self.heads)
        fitting = CACHE_FLOATS * torch.get_num_threads() // (tokens * self.linear1.out_features)
        at_once = 1 << max(0, fitting.bit_length() - 1)  # a power of two: many batches are whole numbers of them
        for start in range(0, batch, at_once):
            few = slice(start, min(start + at_once, batch))
            again = few.stop - start in (1, at_once)
            done, (keys[few], values[few]) = self._prefix(x[few], last, again, in_place=not last)
            if last:
                out[few] = done
        return out, KeysValues(keys, values)

    def _prefix(self, x: Tensor, last: bool, again: bool = False, in_place: bool = False) -> tuple[Tensor, KeysValues]:
        """again: one image, or as many as `prefix` always takes at once. in_place: the result is written over x."""
        y = self.norm1(x)
        if last:
            dim = x.shape[-1]
            query = F.linear(y[:, -1:], self.qkv.weight[:dim], self.qkv.bias[:dim])
            key, value = self._qkv(y, dim, again).chunk(2, -1)
            x = x[:, -1:]
        else:
            query, key, value = self._qkv(y, again=again).chunk(3, -1)
        query, key, value = (self._heads(part) for part in (query, key, value))
        attended = F.scaled_dot_product_attention(query, key, value, dropout_p=self.dropout if self.training else 0.0)
        out = self._finish(x, attended.transpose(1, 2).flatten(-2), again and not last, in_place)
        return out, KeysValues(key, value)

    def together(
        self, x: Float[Tensor, "batch tokens dim"], mask: Float[Tensor, "queries tokens"], last: bool = False
    ) -> Float[Tensor, "batch outputs dim"]:
        """`prefix` and `extend` in one, for training: [START] and the tokens after it attend by the mask, the patch tokens to one another.

        In the last layer the patch tokens are not computed.
        """
        start = x.shape[1] - len(mask)
        y, dropout = self.norm1(x), self.dropout if self.training else 0.0
        query, key, value = (self._heads(part) for part in self.qkv(y).chunk(3, -1))
        if last:
            attended = F.scaled_dot_product_attention(query[:, :, start:], key, value, mask, dropout)
            x = x[:, start:]
        else:
            of_image, after = query.split([start + 1, len(mask) - 1], 2)  # slices would have gradients full of zeros
            image = slice(0, start + 1)
            parts = [
                F.scaled_dot_product_attention(of_image, key[:, :, image], value[:, :, image], dropout_p=dropout),
                F.scaled_dot_product_attention(after, key, value, mask[1:], dropout),
            ]
            attended = torch.cat(parts, 2)
        return self._finish(x, attended.transpose(1, 2).flatten(-2))

    def extend(
        self,
        x: Float[Tensor, "batch rotations steps dim"],
        prefix: KeysValues,
        past: Float[Tensor, "batch rotations earlier twodim"] | None,
    ) -> tuple[Float[Tensor, "batch rotations steps dim"], Float[Tensor, "batch rotations total twodim"]]:
        """Rotation tokens: one softmax over the shared prefix and the rotation's own tokens so far, the prefix never copied."""
        steps, dim = x.shape[-2:]
        if steps == x.shape[1] == 1 and self.unrecorded(x):
            return self._extend_one(x, prefix, past)
        query, own = self._qkv(self.norm1(x)).split([dim, 2 * dim], -1)
        if past is not None:
            own = torch.cat([past, own], 2)
        total = own.shape[2]
        query = query.unflatten(-1, (self.heads, -1)) / math.sqrt(dim // self.heads)
        own_key, own_value = (part.unflatten(-1, (self.heads, -1)) for part in own.chunk(2, -1))

        # one matrix product an image and head, however many rotations: (batch, heads, rotations * steps, tokens)
        shared = query.flatten(1, 2).transpose(1, 2) @ prefix.keys.transpose(-1, -2)
        # a rotation's own tokens are at most two: sums of products, not thousands of tiny matrix products
        if steps == 1:
            private = (query * own_key).sum(-1).permute(0, 3, 1, 2)  # (batch, heads, rotations, total)
        else:
            scores = [
                (query * own_key[:, :, t : t + 1]).sum(-1) for t in range(total)
            ]  # (batch, rotations, steps, heads)
            for t in range(total - steps + 1, total):  # a token does not see later ones
                sees = t - total + steps
                scores[t] = torch.cat([torch.full_like(scores[t][:, :, :sees], -torch.inf), scores[t][:, :, sees:]], 2)
            private = torch.stack(scores, -1).flatten(1, 2).transpose(1, 2)
        weights = self._drop(torch.cat([shared, private], -1).softmax(-1))
        attended = (weights[..., :-total] @ prefix.values).transpose(1, 2).unflatten(1, (-1, steps))
        mine = weights[..., -total:].transpose(1, 2).unflatten(1, (-1, steps))[..., None]
        for t in range(total):
            attended = torch.addcmul(attended, mine[..., t, :], own_value[:, :, t : t + 1])
        return self._finish(x, attended.flatten(-2)), own

    def _extend_one(self, x: Tensor, prefix: KeysValues, past: Tensor | None) -> tuple[Tensor, Tensor]:
        """`extend` for one token of one rotation an image, where the number of operations is what takes time."""
        batch, dim = len(x), x.shape[-1]
        size = dim // self.heads
        qkv = products.few_linear(products.few_norm(x, self.norm1), self.qkv)
        own = qkv[..., dim:] if past is None else torch.cat([past, qkv[..., dim:]], 2)
        total = own.shape[2]
        query = qkv[..., :dim].mul(1 / math.sqrt(size)).reshape(batch * self.heads, 1, size)
        own_key, own_value = own.reshape(batch, total, 2, self.heads, size).permute(2, 0, 3, 1, 4).flatten(1, 2)
        shared = torch.bmm(query, prefix.keys.flatten(0, 1).transpose(1, 2))
        weights = torch.cat([shared, torch.bmm(query, own_key.transpose(1, 2))], -1).softmax(-1)
        attended = torch.bmm(weights[..., -total:], own_value)
        attended = torch.baddbmm(attended, weights[..., :-total], prefix.values.flatten(0, 1))
        rows = products.plus_linear(x.reshape(batch, dim), attended.reshape(batch, dim), self.out)
        hidden = products.linear_gelu(products.few_norm(rows, self.norm2), self.linear1)  # images may be many
        return products.plus_linear(rows, hidden, self.linear2).reshape(x.shape), own


class ScaledLinear(nn.Linear):
    """A linear map with one learnt factor, so that sharper or flatter logits are one step away and not one for each weight."""

    def __init__(self, inputs: int, outputs: int):
        super().__init__(inputs, outputs)
        self.log_scale = nn.Parameter(torch.zeros(()))

    def forward(self, x: Float[Tensor, "*batch inputs"]) -> Float[Tensor, "*batch outputs"]:
        return super().forward(x * self.log_scale.exp())


class ComponentEmbedding(nn.Module):
    r"""$g_{q_c}$: NeRF-like encoding $[q, \sin(2^l \pi q), \cos(2^l \pi q)]_{l<L}$, then an MLP of widths d/4, d/2, d."""

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
        x = torch.cat([q[..., None], waves], -1)
        if _recorded(x) or x.numel() >= products.FEW * x.shape[-1]:
            return self.mlp(x)
        for layer in self.mlp:
            x = products.few_gelu(x) if isinstance(layer, nn.GELU) else layer(x)
        return x


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
        """As a matrix product: a little quicker than the convolution that it is, and its output is laid out as the next layer wants it."""
        patch, (height, width) = self.project.kernel_size[0], images.shape[-2:]
        grid = images.unflatten(-1, (width // patch, patch)).unflatten(-3, (height // patch, patch))
        patches = grid.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)  # (batch, tokens, channels * patch * patch)
        if _recorded(patches):
            return F.linear(patches, self.project.weight.flatten(1), self.project.bias)
        return products.linear(patches, self.project, again=len(patches) == 1)


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
    """Strided convolutions and residual blocks to a small grid of tokens: learns far faster than patches on little data.

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
    """Batch norm whose statistics are of the whole batch, whatever the number of processes that share it, on any backend."""

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
        mean = SumOverProcesses.apply(x.sum((0, 2, 3))) / count
        centred = x - mean[:, None, None]
        variance = SumOverProcesses.apply(centred.square().sum((0, 2, 3))) / count
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(variance * (count / (count - 1)), self.momentum)
        scale = self.weight * (variance + self.eps).rsqrt()
        return centred * scale[:, None, None] + self.bias[:, None, None]


def _group_norm(channels: int) -> nn.GroupNorm:
    return nn.GroupNorm(math.gcd(channels, 8), channels)


# group norm treats each image by itself, in training too; batch norm learns about four times as fast (docs/log.md)
NORMS: dict[str, Callable[[int], nn.Module]] = {"batch": BatchNorm, "group": _group_norm}


def normalise(images: Shaped[Tensor, "batch channels height width"]) -> Float[Tensor, "batch channels height width"]:
    """uint8 or [0, 1] -> [-1, 1]: mean 0.5, standard deviation 0.5."""
    images = images.float() / 255 if images.dtype == torch.uint8 else images.float()
    return torch.add(images.new_full((), -1.0), images, alpha=2)
