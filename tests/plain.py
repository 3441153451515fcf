"""The paper's forward pass and decoding written out plainly: one padded sequence, torch's own encoder, an explicit mask.

Used as an oracle for the fast paths and, in the original's tensor names, for importing its checkpoints.
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
