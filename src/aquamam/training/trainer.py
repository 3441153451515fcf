"""From a data set to a model, never losing work: resumable, averaged, the same on one process and on many.

Batch `step` is a pure function of the data's seed and the step, so a run's whole state is: weights, their running mean, the optimiser's
moments, the random state, and a few numbers. It is written atomically to OUT/state.safetensors; a killed run goes on from there.
"""

import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm import tqdm

from aquamam.checkpoints.checkpoint import build, save_model
from aquamam.data.augment import augmentation
from aquamam.data.base import Batch, RotationDataset
from aquamam.data.stream import Stream, one_pass
from aquamam.errors import InputError
from aquamam.data.labels import carried_over, draw_labels
from aquamam.network.layers import BatchNorm
from aquamam.training.optim import make_optimizers
from aquamam.training.config import TrainConfig
from aquamam.training.runfolder import RunFolder

MOST_UNREADABLE = 0.01  # share of images that may be skipped before a run stops


class TrainingStopped(InputError):
    """Training cannot go on; the last good checkpoint is on disk."""


@dataclass
class Progress:
    """The numbers of a run that are not tensors."""

    step: int = 0
    elapsed: float = 0.0  # seconds of training, over all sessions
    images: int = 0
    skipped: int = 0
    best: float = -math.inf  # best validation log-likelihood
    bad_epochs: int = 0  # plateau: epochs since the last improvement
    halvings: int = 0
    idle_halvings: int = 0  # plateau: halvings in a row without an improvement
    finished: bool = False
    skipped_names: list[str] = field(default_factory=list)


class _Loss(nn.Module):
    """The loss as a module's forward, which is what DistributedDataParallel hooks into."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(
        self, images: Tensor, q: Tensor, weights: Tensor, smoothing: float, generator: torch.Generator
    ) -> Tensor:
        return self.model.loss(images, q, weights=weights, smoothing=smoothing, generator=generator)  # type: ignore[operator]


class Trainer:
    """One training run in one folder."""

    def __init__(
        self,
        kind: str,
        model_config: dict[str, Any],
        config: TrainConfig,
        train: RotationDataset,
        valid: RotationDataset,
        out: str | os.PathLike[str],
        *,
        start_from: nn.Module | None = None,
        device: str | torch.device | None = None,
        quiet: bool = False,
    ):
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.world = dist.get_world_size() if dist.is_initialized() else 1
        if config.batch_size % self.world:
            raise InputError(f"batch_size must be a multiple of the {self.world} processes, got {config.batch_size}.")
        self.config, self.train_data, self.valid_data, self.out = config, train, valid, Path(out)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.quiet = quiet or self.rank > 0
        torch.manual_seed(config.seed)
        self.model = build(kind, model_config)
        self.known = {} if start_from is None else carried_over(start_from, train)
        if start_from is not None:
            self.model.load_state_dict(start_from.state_dict())
        self.model.to(self.device)
        self.average = build(kind, model_config).to(self.device)
        self.average.load_state_dict(self.model.state_dict())
        self.average.requires_grad_(False).eval()
        self.optimizers = make_optimizers(self.model, config)
        self.progress = Progress()
        model_dict = self.model.config.to_dict()  # type: ignore[union-attr,operator]
        identity = {"kind": kind, "model": model_dict, "train": config.to_dict(), "data": train.describe()}
        self.folder = RunFolder(self.out, identity)
        if self.rank:  # weights start alike everywhere, noise must not
            torch.manual_seed(config.seed * 1_000_003 + self.rank)
        self.stream = Stream(
            dataset=train,
            batch_size=config.batch_size // self.world,
            seed=config.seed,
            rank=self.rank,
            world=self.world,
            augment=None if config.augment == "none" else augmentation(config.augment),
            threads=config.threads,
        )
        self._check_fit()
        loss: nn.Module = _Loss(self.model)
        if config.compile:
            loss = torch.compile(loss)  # type: ignore[assignment]
        if self.world > 1:
            loss = nn.parallel.DistributedDataParallel(loss)
        self.loss = loss

    # The run.

    def fit(self, on_validation: Callable[[Progress, float], None] | None = None) -> Progress:
        """Train to the end of the schedule, from the last checkpoint if there is one."""
        self.resume()
        if self.progress.finished:
            return self.progress
        config, progress = self.config, self.progress
        saved = tick = time.monotonic()
        bar = self._bar()
        window: list[float] = []
        batches = self.stream.batches(start=progress.step)
        try:
            for batch in batches:
                loss = self._step(batch)
                progress.step += 1
                progress.images += len(batch) * self.world
                now = time.monotonic()
                progress.elapsed = self._clock(progress.elapsed + now - tick)
                tick = now
                if progress.step % 10 == 0:
                    window = [*window[-19:], -float(loss)]
                    self._show(bar, window)
                done = self._share() >= 1.0
                if done or progress.step % self._validation_interval() == 0:
                    log_likelihood = self.validate()
                    done = (
                        self._after_validation(log_likelihood, float(np.mean(window)) if window else -float(loss))
                        or done
                    )
                    if on_validation:
                        on_validation(progress, log_likelihood)
                    tick = time.monotonic()  # validation is not counted against the budget of training
                if done:
                    progress.finished = True
                    self.save()
                    break
                if time.monotonic() - saved > config.checkpoint_seconds:
                    self.save()
                    saved = time.monotonic()
        finally:
            batches.close()  # type: ignore[attr-defined]
            bar.close()
        return progress

    def _step(self, batch: Batch) -> Tensor:
        config, progress = self.config, self.progress
        self._count_unreadable(batch)
        share = self._share()
        rate = config.learning_rate(share) * 0.5**progress.halvings
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = rate * group["rate"]
        self.model.train()
        if share >= config.frozen_norms:
            for module in self.model.modules():
                if isinstance(module, BatchNorm):
                    module.eval()
        batch = batch.to(self.device)
        q, weights = draw_labels(
            batch,
            self.train_data,
            config.labels_per_image,
            seed=config.seed,
            positions=self.stream.positions(progress.step),
        )
        # one generator a step: negatives and noise of a resumed run are those of an uninterrupted one
        seed = np.random.SeedSequence([config.seed, progress.step, self.rank]).generate_state(1)[0]
        generator = torch.Generator(device=self.device).manual_seed(int(seed))  # torch keeps only 32 bits of a seed
        mixed = torch.autocast(self.device.type, torch.bfloat16) if config.precision == "bfloat16" else nullcontext()
        with mixed:
            loss = self.loss(batch.images, q, weights, config.label_width(share), generator)
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip if config.clip else math.inf)
        if not torch.isfinite(loss) or not torch.isfinite(norm):
            raise TrainingStopped(
                f"the loss or its gradient is not finite at step {progress.step} (loss {float(loss.detach()):.4g}); the last good checkpoint is in "
                f"{self.out}; try a lower lr than {config.lr:g}."
            )
        for optimizer in self.optimizers:
            optimizer.step()
        self._average()
        return loss.detach()

    def _average(self) -> None:
        # early on the mean must forget quickly: the first weights are noise
        decay = (
            min(self.config.averaging, (1 + self.progress.step) / (10 + self.progress.step))
            if self.config.averaging
            else 0.0
        )
        with torch.no_grad():
            mean, now = list(self.average.state_dict().values()), list(self.model.state_dict().values())
            if decay == 0.0:
                torch._foreach_copy_(mean, now)
            else:
                torch._foreach_lerp_(mean, now, 1 - decay)

    def validate(self) -> float:
        """Mean log-likelihood of held-out images under the averaged weights: over equivalents, then over images."""
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        limit = min(self.config.validation_size, len(self.valid_data))
        size = min(256, math.ceil(limit / self.world))
        with torch.no_grad():
            for batch in one_pass(
                self.valid_data, size, rank=self.rank, world=self.world, limit=limit, unreadable="skip"
            ):
                batch = batch.to(self.device)
                log_p = self.average(batch.images).log_prob(batch.rotations.transpose(0, 1)).double()
                real = torch.arange(log_p.shape[0], device=self.device)[:, None] < batch.counts
                total[0] += ((log_p * real).sum(0) / batch.counts).sum()
                total[1] += len(batch)
        if self.world > 1:
            dist.all_reduce(total)
        return float(total[0] / total[1])

    def _after_validation(self, log_likelihood: float, train: float) -> bool:
        """Log, keep the best, and for the plateau schedule halve the rate or stop."""
        progress = self.progress
        improved = log_likelihood > progress.best
        if improved:
            progress.best, progress.bad_epochs, progress.idle_halvings = log_likelihood, 0, 0
        else:
            progress.bad_epochs += 1
        stop = False
        if self.config.schedule == "plateau" and progress.bad_epochs >= self.config.patience:
            progress.bad_epochs = 0
            progress.halvings += 1
            progress.idle_halvings += 1
            stop = progress.idle_halvings >= 2
        if self.rank == 0:
            ceiling = getattr(getattr(self.average, "cells", None), "ceiling", None)
            record = {
                "step": progress.step,
                "images": progress.images,
                "elapsed": round(progress.elapsed, 3),
                "log_likelihood": log_likelihood,
                "train_log_likelihood": train,
                "lr": self.config.learning_rate(self._share()) * 0.5**progress.halvings,
                "smoothing": self.config.label_width(self._share()),
                "ceiling": ceiling,
            }
            with self._saying_what_to_do():
                self.folder.log(record)
                if improved:
                    save_model(self.average, self.out / "best.safetensors", self._info(log_likelihood))
                save_model(self.average, self.out / "last.safetensors", self._info(log_likelihood))
            if not self.quiet:
                line = f"step {progress.step:>7,}  {progress.elapsed / 60:6.1f} min  LL valid {log_likelihood:7.3f}  train {train:7.3f}"
                tqdm.write(line + (f"  ceiling {ceiling:.2f}" if ceiling else ""), file=sys.stderr)
        return stop

    # State.

    def save(self) -> None:
        """Write the whole state. Only rank 0 writes."""
        if self.rank > 0:
            return
        tensors = {f"model.{k}": v for k, v in self.model.state_dict().items()}
        tensors |= {f"average.{k}": v for k, v in self.average.state_dict().items()}
        tensors["random_state"] = torch.get_rng_state()
        names = {parameter: name for name, parameter in self.model.named_parameters()}
        for optimizer in self.optimizers:
            for parameter, state in optimizer.state.items():
                tensors |= {f"optimizer.{names[parameter]}.{k}": v for k, v in state.items()}  # type: ignore[index]
        with self._saying_what_to_do():
            self.folder.save(tensors, self.progress.__dict__)

    @contextmanager
    def _saying_what_to_do(self) -> Iterator[None]:
        """A full disk or a lost folder: files are written whole or not at all, so the last ones are good."""
        try:
            yield
        except OSError as error:
            raise TrainingStopped(
                f"{self.out} cannot be written at step {self.progress.step} ({error.strerror or error}); what was saved before is whole: "
                "make room and run the same command again."
            ) from error

    def resume(self) -> None:
        """Take up the state in the run's folder, if there is one."""
        found = self.folder.load()
        if found is None:
            if self.rank == 0:
                self.folder.start()
            return
        tensors, progress = found
        self.progress = Progress(**progress)
        self.model.load_state_dict(_part(tensors, "model."))
        self.average.load_state_dict(_part(tensors, "average."))
        torch.set_rng_state(tensors["random_state"])
        parameters = dict(self.model.named_parameters())
        homes = {p: optimizer for optimizer in self.optimizers for g in optimizer.param_groups for p in g["params"]}
        for key, value in _part(tensors, "optimizer.").items():
            name, _, part = key.rpartition(".")
            parameter = parameters[name]
            homes[parameter].state[parameter][part] = value if part == "step" else value.to(self.device)
        if self.rank == 0:
            self.folder.trim_log(self.progress.step)

    # Small questions.

    def _share(self) -> float:
        """How much of the schedule is behind us."""
        if self.config.time_budget:
            return min(1.0, self.progress.elapsed / self.config.time_budget)
        return min(1.0, self.progress.step / self.config.steps)

    def _clock(self, elapsed: float) -> float:
        """Rank 0's clock, where the schedule depends on it: all processes must use the same rate."""
        if self.world == 1 or not self.config.time_budget:
            return elapsed
        shared = torch.tensor([elapsed], dtype=torch.float64, device=self.device)
        dist.broadcast(shared, 0)
        return float(shared)

    def _validation_interval(self) -> int:
        if self.config.schedule == "cosine":
            return self.config.validate_every
        size = self.config.epoch_size if self.train_data.endless else len(self.train_data)
        return max(1, size // self.config.batch_size)

    def _check_fit(self) -> None:
        config = self.model.config
        size = getattr(config, "image_size", None)
        if getattr(config, "embedding", getattr(config, "encoder", "")) == "category":
            raise InputError("a model of categories cannot be trained on images; choose a preset that reads images.")
        for name, data in (("training", self.train_data), ("validation", self.valid_data)):
            if data.image_size is not None and size is not None and tuple(data.image_size) != (size, size):
                raise InputError(
                    f"the model reads {size} x {size} images and the {name} data has {data.image_size[0]} x {data.image_size[1]}; "
                    f"set image_size={data.image_size[0]}, or render or open the data at {size}."
                )
        if self.valid_data.endless or len(self.valid_data) == 0:
            raise InputError("the validation data is empty or endless; training needs a finite held-out split.")
        if self.config.schedule == "plateau" and self.train_data.endless and not self.config.epoch_size:
            raise InputError("endless data has no epochs; set epoch_size for the plateau schedule.")

    def _count_unreadable(self, batch: Batch) -> None:
        progress = self.progress
        if not batch.unreadable:
            return
        progress.skipped += len(batch.unreadable)
        progress.skipped_names = [*progress.skipped_names, *batch.unreadable][-20:]
        if not self.quiet:
            tqdm.write(f"skipped {batch.unreadable[0]}")
        if progress.skipped > MOST_UNREADABLE * max(progress.images + len(batch), 1000):
            raise TrainingStopped(
                f"more than {MOST_UNREADABLE:.0%} of the images cannot be read ({progress.skipped} so far, last {batch.unreadable[-1]}); "
                "repair the data set and run again."
            )

    def _info(self, log_likelihood: float) -> dict[str, Any]:
        progress = self.progress
        return {
            "validation_log_likelihood": round(log_likelihood, 4),
            "measure": "pi^2",
            "steps": progress.step,
            "images_seen": progress.images,
            "hours": round(progress.elapsed / 3600, 3),
            "data": json.loads(json.dumps(self.train_data.describe(), default=str)),
            "classes": list(self.train_data.classes),
            "training": self.config.to_dict(),
            **self.known,
        }

    def _bar(self) -> tqdm:
        budget = self.config.time_budget
        total = round(budget) if budget else (self.config.steps if self.config.schedule == "cosine" else None)
        unit = "s" if budget else "step"
        return tqdm(
            total=total, initial=round(self.progress.elapsed) if budget else self.progress.step, unit=unit,
            disable=self.quiet or None, dynamic_ncols=True,
        )  # fmt: skip

    def _show(self, bar: tqdm, window: list[float]) -> None:
        now = round(self.progress.elapsed) if self.config.time_budget else self.progress.step
        rate = self.progress.images / max(self.progress.elapsed, 1e-9)
        bar.set_postfix_str(
            f"LL {np.mean(window):.3f}, best valid {self.progress.best:.3f}, {rate:.0f} img/s", refresh=False
        )
        bar.update(now - bar.n)


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
