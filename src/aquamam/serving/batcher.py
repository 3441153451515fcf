"""One thread that runs the network: requests that wait together go through it together."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor

from aquamam.network.model import RotationModel
from aquamam.posterior.answers import Answer, answers
from aquamam.posterior.distribution import RotationDistribution
from aquamam.serving.gate import Refusal


class Encoded:
    """A batch of images behind a model; the posterior of each is the same, to rounding, as if it were alone."""

    def __init__(self, model: RotationModel, images: Sequence[UInt8[Tensor, "c h w"]]):
        self.model, self.images = model, images

    @cached_property
    def posterior(self) -> RotationDistribution:
        return self.model(torch.stack(list(self.images)))

    @cached_property
    def plain(self) -> list[Answer]:
        """Greedy predictions of all images, decoded at once."""
        return answers(self.posterior, 0)

    def row(self, i: int) -> RotationDistribution:
        """The posterior of one image: many rotations of one image are a large matrix as they are."""
        return self.posterior if len(self.images) == 1 else self.posterior._some(slice(i, i + 1))


@dataclass(eq=False, kw_only=True)
class Job:
    """An image and what to do with its posterior: `work(encoded, i)` in the network's thread."""

    model: RotationModel
    image: UInt8[Tensor, "c h w"]
    work: Callable[[Encoded, int], Any]
    cost: int = 0  # rotations; in a batch the short jobs go first
    answer: "Future[Any]" = field(default_factory=Future)  # whoever cancels it does not wait any more
    submitted: float = field(default_factory=time.monotonic)
    waited: float = 0.0  # seconds in the queue
    batch: int = 0  # images in its batch


class Batcher:
    """Takes jobs from any thread, answers them through their futures.

    There is no waiting for company: while a batch runs, the next one gathers. An idle service answers a lone request at
    once, and a busy one finds its batches full.
    """

    def __init__(self, *, most: int = 16, seen: Callable[[int], None] = lambda size: None):
        """most: images in a batch. seen: told the size of each batch."""
        self.most, self.seen, self.closed = most, seen, False
        self.waiting: deque[Job] = deque()
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="aquamam-network")

    def submit(self, job: Job) -> "Future[Any]":
        """Queue a job; its answer, or what went wrong, comes through the future."""
        self.waiting.append(job)
        try:
            self.thread.submit(self._run)  # once for each job: after a batch of several some find none
        except RuntimeError:  # it is closed
            raise Refusal(503, "the service is shutting down; try another one.", {"retry-after": "5"}) from None
        return job.answer

    def close(self) -> None:
        """Answer what is queued, take nothing more, and end the thread."""
        self.closed = True
        self.thread.shutdown()

    @torch.inference_mode()
    def _run(self) -> None:
        jobs = [self.waiting.popleft() for _ in range(min(self.most, len(self.waiting)))]
        jobs = [job for job in jobs if not job.answer.cancelled()]
        for model in {id(job.model): job.model for job in jobs}.values():
            self._answer([job for job in jobs if job.model is model])

    def _answer(self, jobs: list[Job]) -> None:
        """Do the jobs of one model."""
        self.seen(len(jobs))
        begun, encoded = time.monotonic(), Encoded(jobs[0].model, [job.image for job in jobs])
        for i, job in sorted(enumerate(jobs), key=lambda numbered: numbered[1].cost):
            job.waited, job.batch = begun - job.submitted, len(jobs)
            if job.answer.set_running_or_notify_cancel():
                try:
                    job.answer.set_result(job.work(encoded, i))
                except Exception as error:
                    job.answer.set_exception(error)
