"""Which true rotations to train on: the given one, or several that look the same."""

import numpy as np
import torch
from torch import Tensor

from aquamam.data.base import Batch, RotationDataset
from aquamam.data.random import uniforms
from aquamam.geometry.rotations import multiply


def draw_labels(
    batch: Batch, data: RotationDataset, count: int, *, seed: int, positions: np.ndarray
) -> tuple[Tensor, Tensor]:
    """True rotations to train on, (rotations, batch, 4), and their weights: the given one, or `count` random equivalents of it.

    Equivalents come from the data or from the object's symmetry group, continuous axes too, spread evenly over all there are.
    """
    q = batch.rotations
    device = q.device
    if count == 1 and q.shape[1] == 1:
        return q.transpose(0, 1), torch.ones((1, len(batch)), device=device)
    numbers = np.asarray(positions, dtype=np.int64)[: len(batch)]
    u = torch.from_numpy(uniforms(seed, "labels", numbers, 2 * count + 1)).to(device)
    u, start = u[:, 1:].reshape(len(batch), count, 2), u[:, :1]
    # one of each `count`-th part of the list, the group or the turn about its axis, from a random place on
    layer = ((torch.arange(count, device=device) + u[..., 1]) / count + start) % 1
    pick = (layer * batch.counts[:, None]).long()
    chosen = q.gather(1, pick[..., None].expand(-1, -1, 4))  # (batch, count, 4)
    turned, alone = chosen.clone(), (batch.counts == 1).tolist()
    for label in set(batch.labels):
        group = data.symmetry(label)
        rows = torch.tensor([i for i, name in enumerate(batch.labels) if name == label and alone[i]], device=device)
        if group is not None and len(rows):
            free, even = u[rows, :, 0], layer[rows]  # the first number picks the element, the second the turn
            which = torch.stack([even, free] if group.axis is None else [free, even], -1)
            turned[rows] = multiply(chosen[rows], group.element(which).to(chosen.dtype))
    chosen = turned
    return chosen.transpose(0, 1), torch.full((count, len(batch)), 1 / count, device=device)
