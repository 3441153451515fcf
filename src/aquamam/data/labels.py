"""Which true rotations to train on: the given one, or several that look the same; what a checkpoint knows of them."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from aquamam.data.base import Batch, RotationDataset
from aquamam.data.random import uniforms
from aquamam.geometry.rotations import multiply
from aquamam.rendering.solids import NAMES


def draw_labels(
    batch: Batch, data: RotationDataset, count: int, *, seed: int, positions: np.ndarray
) -> tuple[Tensor, Tensor]:
    """True rotations to train on, (rotations, batch, 4), and their weights: the given one, or `count` equivalents.

    Equivalents come from the data or from the object's symmetry group, continuous axes too, spread evenly over all.
    """
    q = batch.rotations
    device = q.device
    if count == 1 and q.shape[1] == 1:
        return q.transpose(0, 1), torch.ones((1, len(batch)), device=device)
    numbers = np.asarray(positions, dtype=np.int64)[: len(batch)]
    u = torch.from_numpy(uniforms(seed, "labels", numbers, 2 * count + 1)).to(device)
    u, start = u[:, 1:].reshape(len(batch), count, 2), u[:, :1]
    # one of each `count`-th part of the list, the group or the angles about its axis, from a random place on
    layer = ((torch.arange(count, device=device) + u[..., 1]) / count + start) % 1
    pick = (layer * batch.counts[:, None]).long()
    labels = q.gather(1, pick[..., None].expand(-1, -1, 4))  # (batch, count, 4)
    alone = (batch.counts == 1).tolist()
    for label in set(batch.labels):
        group = data.symmetry(label)
        rows = torch.tensor([i for i, name in enumerate(batch.labels) if name == label and alone[i]], device=device)
        if group is not None and len(rows):
            free, even = u[rows, :, 0], layer[rows]  # the first number picks the element, the second the angle
            which = torch.stack([even, free] if group.axis is None else [free, even], -1)
            labels[rows] = multiply(labels[rows], group.element(which).to(labels.dtype))
    return labels.transpose(0, 1), torch.full((count, len(batch)), 1 / count, device=device)


def carried_over(start: nn.Module, data: RotationDataset) -> dict[str, Any]:
    """What a model's description says of its object's symmetries and views, if it trains on with the same object.

    The same classes and the same meshes; where the data tells no mesh, as photographs do, the name must be the user's
    own: not every die is ours.
    """
    info: dict[str, Any] = getattr(start, "info", {})
    told = (info.get("data", {}), data.describe())
    before, now = ([thing.get("mesh") for thing in one.get("objects", ())] for one in told)
    same = before == now if before and now else not set(data.classes) & set(NAMES)
    if not same or list(info.get("classes", ())) != list(data.classes):
        return {}
    return {key: info[key] for key in ("symmetries", "view_classes", "part") if key in info}
