"""One process or many: what `torchrun` says in the environment."""

import gc
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.rendezvous import rendezvous
from torch.nn.utils import parametrize

from aquamam.checkpoints.checkpoint import usable
from aquamam.network.model import RotationModel


@contextmanager
def process_group(device: str | None = None) -> Iterator[torch.device]:
    """Join the processes that `torchrun` started, if it did, and yield this one's device: nccl with GPUs, gloo
    without."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device == "cuda":  # each process its own
        device = f"cuda:{os.environ.get('LOCAL_RANK', 0)}"
    chosen = usable(device)
    if "RANK" not in os.environ or int(os.environ.get("WORLD_SIZE", 1)) == 1:
        yield chosen
        return
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    # workers that torchrun starts again share a store with those before, whose addresses they must not find there
    store, rank, world = next(rendezvous("env://"))
    store = dist.PrefixStore(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"), store)
    backend = "nccl" if chosen.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world)
    try:
        yield chosen
    finally:
        gc.collect()  # what still holds the group would abort the process when the interpreter ends
        dist.destroy_process_group()


class Loss(nn.Module):
    """The loss as a module's forward, which is what DistributedDataParallel hooks into."""

    def __init__(self, model: RotationModel):
        super().__init__()
        self.model = model

    def forward(self, *args: Any, **options: Any) -> Tensor:
        with parametrize.cached():  # a head's levels are summed once a step
            return self.model.loss(*args, **options)
