"""The paper's network as its pseudo-code has it: one padded sequence, torch's own encoder, an explicit mask, one image
copy a rotation.

The reference side of the benchmarks, the oracle of the tests for every fast path, and, since its tensors are named as
in the original repository, for importing the original's checkpoints.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class PlainAQuaMaM(nn.Module):
    """Hemisphere chart, paper density; parameters named as in the original repository."""

    def __init__(
        self,
        bins: int,
        dim: int,
        heads: int,
        layers: int,
        *,
        categories: int = 0,
        image: int = 0,
        patch: int = 0,
        tokens: int = 0,
    ):
        super().__init__()
        self.tokens = tokens or (image // patch) ** 2
        widths = (13, dim // 4, dim // 2, dim)
        self.mlps = nn.ModuleList(
            nn.Sequential(
                nn.Linear(13, widths[1]), nn.GELU(), nn.Linear(*widths[1:3]), nn.GELU(), nn.Linear(*widths[2:4])
            )
            for _ in range(2)
        )
        self.patch_embed = (
            nn.Embedding(categories, self.tokens * dim) if categories else nn.Conv2d(3, dim, patch, patch)
        )
        self.cls_token = nn.Parameter(torch.randn(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.randn(1, self.tokens + 3, dim) * 0.02)
        layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, F.gelu, 1e-6, norm_first=True, batch_first=True)
        self.transformer = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, bins))
        edges = torch.linspace(-1, 1, bins + 1)
        self.register_buffer("bins", edges[1:])
        self.register_buffer(
            "bin_bottoms", torch.minimum(edges[1:].abs(), edges[:-1].abs()) * (edges[1:] * edges[:-1] >= 0)
        )
        mask = torch.triu(torch.full((self.tokens + 3, self.tokens + 3), -torch.inf), 1)
        mask[:, : self.tokens + 1] = 0
        self.register_buffer("mask", mask)

    def embed(self, images: Tensor) -> Tensor:
        if isinstance(self.patch_embed, nn.Embedding):
            return self.patch_embed(images).reshape(len(images), self.tokens, -1)
        return self.patch_embed((images - 0.5) / 0.5).flatten(2).transpose(1, 2)

    def component(self, c: int, value: Tensor) -> Tensor:
        parts = [value] + [f(2**level * math.pi * value) for level in range(6) for f in (torch.sin, torch.cos)]
        return self.mlps[c](torch.stack(parts, -1))

    def logits(self, images: Tensor, values: Tensor) -> Tensor:
        """Unmasked logits (B, 3, N) given the first two components (B, 2)."""
        x = self.embed(images)
        rotation = [self.component(c, values[:, c])[:, None] for c in range(2)]
        x = torch.cat([x, self.cls_token.expand(len(x), -1, -1), *rotation], 1) + self.pos_embed
        return self.head(self.transformer(x, self.mask)[:, -3:])

    def legal(self, labels: Tensor) -> Tensor:
        """Bins whose smallest magnitude fits beside those of the bins before, (B, N)."""
        room = 1 - self.bin_bottoms.double()[labels].square().sum(-1, keepdim=True)
        return self.bin_bottoms.double().square() < room - 1e-9

    def log_prob(self, images: Tensor, q: Tensor) -> Tensor:
        """Equation 6, a whole forward pass for each rotation; q canonical (B, 4)."""
        q = torch.where(q[:, 3:] < 0, -q, q)
        labels = torch.bucketize(q[:, :3].contiguous(), self.bins).clamp(0, len(self.bins) - 1)
        logits = self.logits(images, q[:, :2])
        total = torch.zeros(len(q), dtype=torch.float64)
        for c in range(3):
            row = logits[:, c].masked_fill(~self.legal(labels[:, :c]), -torch.inf)
            total += row.log_softmax(-1).gather(1, labels[:, c : c + 1])[:, 0]
        width = 2 / len(self.bins)
        total += q[:, 3].double().log() - math.log(width)
        for c in (1, 2):
            room = (1 - q[:, :c].double().square().sum(-1)).clamp_min(0).sqrt()
            bottom = self.bin_bottoms.double()[labels[:, c]]
            total -= (torch.minimum(room, bottom + width) - bottom).log()
        return total

    def loss(self, images: Tensor, q: Tensor) -> Tensor:
        """The language-model loss of Section 2.4: the sum of three cross-entropies."""
        labels = torch.bucketize(q[:, :3].contiguous(), self.bins).clamp(0, len(self.bins) - 1)
        logits = self.logits(images, q[:, :2])
        rows = [logits[:, c].masked_fill(~self.legal(labels[:, :c]), -torch.inf) for c in range(3)]
        return sum(F.cross_entropy(row, labels[:, c]) for c, row in enumerate(rows))

    def cached(self, images: Tensor, choose) -> Tensor:
        """Section 3.2: the first P + 1 tokens once a row, then one token at a time against cached keys and values;
        labels (B, 3)."""
        x = (
            torch.cat([self.embed(images), self.cls_token.expand(len(images), -1, -1)], 1)
            + self.pos_embed[:, : self.tokens + 1]
        )
        memory: list = [None] * len(self.transformer.layers)
        labels = torch.zeros(len(images), 0, dtype=torch.long)
        for c in range(3):
            for i, layer in enumerate(self.transformer.layers):
                x, memory[i] = self._layer(layer, x, memory[i])
            row = self.head(x[:, -1]).masked_fill(~self.legal(labels), -torch.inf)
            label, value = choose(row)
            labels = torch.cat([labels, label[:, None]], 1)
            if c < 2:
                x = self.component(c, value)[:, None] + self.pos_embed[:, self.tokens + 1 + c : self.tokens + 2 + c]
        return labels

    @staticmethod
    def _layer(layer: nn.TransformerEncoderLayer, x: Tensor, memory):
        attention = layer.self_attn
        heads = attention.num_heads
        qkv = F.linear(layer.norm1(x), attention.in_proj_weight, attention.in_proj_bias)
        query, key, value = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
        if memory is not None:
            key, value = torch.cat([memory[0], key], 2), torch.cat([memory[1], value], 2)
        attended = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(-2)
        x = x + attention.out_proj(attended)
        return x + layer.linear2(F.gelu(layer.linear1(layer.norm2(x)))), (key, value)

    def centre(self, labels: Tensor) -> Tensor:
        return (labels + 0.5) * 2 / len(self.bins) - 1

    def predict_cached(self, images: Tensor) -> Tensor:
        """Greedy prediction as the paper caches it."""

        def greedy(row: Tensor):
            label = row.argmax(-1)
            return label, self.centre(label)

        return self.centre(self.cached(images, greedy))

    def sample(self, image: Tensor, count: int) -> Tensor:
        """Listing 4 for `count` samples of one image: one copy of the image each, then rejection inside the cells;
        (count, 3)."""
        width = 2 / len(self.bins)

        def draw(row: Tensor):
            label = torch.multinomial(row.softmax(-1), 1)[:, 0]
            return label, self.centre(label) + (torch.rand(len(label)) - 0.5) * width

        centres = self.centre(self.cached(image.expand(count, *image.shape[1:]), draw))
        u = centres + (torch.rand_like(centres) - 0.5) * width
        for _ in range(1000):
            outside = u.norm(dim=-1) > 1
            if not outside.any():
                break
            u[outside] = centres[outside] + (torch.rand_like(centres[outside]) - 0.5) * width
        return u

    def predict(self, images: Tensor) -> Tensor:
        """Greedy, three whole passes."""
        values = torch.zeros(len(images), 3)
        labels = torch.zeros(len(images), 0, dtype=torch.long)
        for c in range(3):
            row = self.logits(images, values[:, :2])[:, c].masked_fill(~self.legal(labels), -torch.inf)
            labels = torch.cat([labels, row.argmax(-1, keepdim=True)], 1)
            values[:, c] = (labels[:, c] + 0.5) * 2 / len(self.bins) - 1
        norm = values.norm(dim=-1, keepdim=True).clamp_min(1)
        values = values / norm
        return torch.cat([values, (1 - values.square().sum(-1, keepdim=True)).clamp_min(0).sqrt()], 1)
