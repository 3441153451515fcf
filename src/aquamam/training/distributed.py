"""One process or many: what `torchrun` says in the environment."""

import os
from collections.abc import Iterator
from contextlib import contextmanager

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
    local = int(os.environ.get("LOCAL_RANK", 0))
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":  # each process its own
        device = f"cuda:{local}"
    chosen = usable(device)
    started = "RANK" in os.environ and int(os.environ.get("WORLD_SIZE", 1)) > 1 and not dist.is_initialized()
    if started:
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
        if started:
            dist.destroy_process_group()


class Loss(nn.Module):
    """The loss as a module's forward, which is what DistributedDataParallel hooks into."""

    def __init__(self, model: RotationModel):
        super().__init__()
        self.model = model

    def forward(
        self,
        images: Tensor,
        q: Tensor,
        window: Tensor | None,
        weights: Tensor,
        smoothing: float,
        generator: torch.Generator,
    ) -> Tensor:
        with parametrize.cached():  # a head's levels are summed once a step
            return self.model.loss(images, q, window=window, weights=weights, smoothing=smoothing, generator=generator)
