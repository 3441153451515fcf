"""One thread that runs the network: requests that wait together go through it together."""

import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
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
    deadline: float = float("inf")  # time.monotonic(); nobody waits for the answer after it
    future: "Future[Any]" = field(default_factory=Future)
    submitted: float = field(default_factory=time.monotonic)
    waited: float = 0.0  # seconds in the queue
    batch: int = 0  # images in its batch

    def is_late(self) -> bool:
        """Whether nobody waits any more; then the future says so."""
        if time.monotonic() <= self.deadline:
            return False
        self.future.set_exception(TimeoutError())
        return True


class Batcher:
    """Takes jobs from any thread, answers them through their futures.

    There is no waiting for company: while a batch runs, the next one gathers. An idle service answers a lone request at
    once, and a busy one finds its batches full.
    """

    def __init__(self, *, most: int = 16, seen: Callable[[int], None] = lambda size: None):
        """most: images in a batch. seen: told the size of each batch."""
        self.most, self.seen, self.closed, self.lock = most, seen, False, threading.Lock()
        self.jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()  # None marks the end
        self.thread = threading.Thread(target=self._run, name="aquamam-network", daemon=True)
        self.thread.start()

    def submit(self, job: Job) -> "Future[Any]":
        """Queue a job; its answer, or what went wrong, comes through the future."""
        with self.lock:  # no job may follow the mark of the end
            if self.closed:
                raise Refusal(503, "the service is shutting down; try another one.", retry=5)
            self.jobs.put(job)
        return job.future

    def close(self, seconds: float | int = 30.0) -> None:
        """Answer what is queued, take nothing more, and end the thread."""
        with self.lock:
            self.closed = True
            self.jobs.put(None)
        self.thread.join(seconds)

    def _run(self) -> None:
        with torch.inference_mode():
            while (batch := self._gather()) is not None:
                for model in {id(job.model): job.model for job in batch}.values():
                    self._answer([job for job in batch if job.model is model])

    def _gather(self) -> list[Job] | None:
        """The next jobs that someone still waits for; None at the end."""
        batch: list[Job] = []
        while len(batch) < self.most and not (batch and self.jobs.empty()):
            job = self.jobs.get()
            if job is None:
                self.jobs.put(None)  # for the next time
                return batch or None
            if job.future.set_running_or_notify_cancel() and not job.is_late():
                job.waited = time.monotonic() - job.submitted
                batch.append(job)
        return batch

    def _answer(self, jobs: list[Job]) -> None:
        """Do the jobs of one model."""
        self.seen(len(jobs))
        encoded = Encoded(jobs[0].model, [job.image for job in jobs])
        for i, job in sorted(enumerate(jobs), key=lambda numbered: numbered[1].cost):
            job.batch = len(jobs)
            if job.is_late():
                continue
            try:
                job.future.set_result(job.work(encoded, i))
            except Exception as error:
                if len(jobs) > 1:  # another one of the batch may be at fault
                    self._answer([job])
                else:
                    job.future.set_exception(error)
