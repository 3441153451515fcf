"""From a data set to a model, never losing work: resumable, averaged, the same on one process and on many.

Batch `step` is a pure function of the data's seed and the step, so a run's whole state is: weights, their running mean,
the optimiser's moments, the random state, and a few numbers. It is written atomically to OUT/state.safetensors; a
killed run goes on from there.
"""

import json
import math
import os
import sys
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from tqdm import tqdm

from aquamam.checkpoints.checkpoint import build, save_model
from aquamam.data.augment import augmentation
from aquamam.data.base import Batch, RotationDataset
from aquamam.data.labels import draw_labels
from aquamam.data.stream import Stream
from aquamam.errors import InputError, require
from aquamam.network.layers import BatchNorm
from aquamam.network.model import RotationModel
from aquamam.posterior.calibration import Calibration
from aquamam.training.config import TrainConfig
from aquamam.training.distributed import Loss
from aquamam.training.held_out import held_out
from aquamam.training.optim import make_optimizers, optimizer_tensors, precision_on, restore_optimizers
from aquamam.training.pyramid import add_pyramids, folded
from aquamam.training.runfolder import Progress, RunFolder
from aquamam.training.start import check_data, fingerprint, inherited

MOST_UNREADABLE = 0.01  # share of images that may be skipped before a run stops


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
        start_from: RotationModel | None = None,
        device: str | torch.device | None = None,
        quiet: bool = False,
    ):
        self.rank, self.world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
        rule = f"batch_size must be a multiple of the {self.world} processes"
        require(config.batch_size % self.world == 0, f"{rule}, got {config.batch_size}.")
        self.config, self.train_data, self.valid_data, self.out = config, train, valid, Path(out)
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.quiet, self.progress = quiet or self.rank > 0, Progress()
        self.recent: deque[float] = deque(maxlen=20)  # log-likelihoods of training batches
        torch.manual_seed(config.seed)
        self.model = build(kind, model_config).to(self.device)
        check_data(self.model.config, config, train, valid)
        self.average = build(kind, model_config).to(self.device)
        if start_from is not None:
            self.model.load_state_dict(start_from.state_dict())
            self.progress.inherited = inherited(start_from, train)
        if config.pyramid:
            for model in (self.model, self.average):
                add_pyramids(model, fresh=start_from is None)
        self._inherit()
        self.average.load_state_dict(self.model.state_dict())
        self.average.requires_grad_(False).eval()
        self.precision = precision_on(self.device, config)
        # torch's fused attention goes backwards ten times slower than plain products in bfloat16 on CPUs
        fused = [] if self.device.type == "cpu" else [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION]
        self.attention = [*fused, SDPBackend.MATH]
        self.optimizers = make_optimizers(self.model, config, self.precision)
        self.described = json.loads(json.dumps(train.describe(), default=str))
        identity = {"kind": kind, "model": self.model.config.to_dict(), "train": config.to_dict()}
        self.folder = RunFolder(self.out, {**identity, "data": {**self.described, **fingerprint(train)}})
        self.stream = Stream(
            dataset=train,
            batch_size=config.batch_size // self.world,
            seed=config.seed,
            rank=self.rank,
            world=self.world,
            augment=augmentation(config.augment),
            threads=config.threads,
        )
        self.loss: nn.Module = Loss(self.model)
        if config.compile:
            self.loss = torch.compile(self.loss)  # type: ignore[assignment]
        if self.world > 1:
            # without windows the layers that tell poses learn nothing
            unused = bool(getattr(self.model.config, "pose", False))
            self.loss = nn.parallel.DistributedDataParallel(self.loss, find_unused_parameters=unused)

    def _inherit(self) -> None:
        """Weights that started from another model's go with the temperatures of that model."""
        told = self.progress.inherited.get("calibration", {})
        self.model.calibration = self.average.calibration = Calibration.from_dict(told)

    # The run.

    def fit(self, on_validation: Callable[[Progress, float], None] | None = None) -> Progress:
        """Train to the end of the schedule, from the last checkpoint if there is one."""
        self.resume()
        progress = self.progress
        if progress.finished:
            return progress
        self.mark, self.fastest = (progress.images, progress.elapsed), 0.0  # images a second between validations
        interval = self.config.validate_every
        if self.config.schedule == "plateau":  # an epoch
            examples = self.config.epoch_size if self.train_data.endless else len(self.train_data)
            interval = max(1, examples // self.config.batch_size)
        saved = tick = time.monotonic()
        done = round(100 * self._share())  # of the schedule
        bar = tqdm(total=100, initial=done, unit="%", disable=self.quiet or None, dynamic_ncols=True)
        batches = self.stream.batches(start=progress.step)
        try:
            while not progress.finished:
                batch = next(batches)
                self._count_unreadable(batch)
                loss = self._step(batch)
                progress.step += 1
                progress.images += len(batch) * self.world
                now = time.monotonic()
                progress.elapsed = self._clock(progress.elapsed + now - tick)
                tick = now
                progress.finished = self._share() >= 1.0
                validating = progress.finished or progress.step % interval == 0
                if validating or progress.step % 10 == 0:
                    self.recent.append(-float(loss))
                    rates = f"best valid {progress.best:.3f}, {progress.images / progress.elapsed:.0f} img/s"
                    told = f"step {progress.step:,}, LL {np.mean(self.recent):.3f}, {rates}"
                    bar.set_postfix_str(told, refresh=False)
                    bar.update(round(100 * self._share()) - bar.n)
                if validating:
                    log_likelihood = self.validate()
                    progress.finished |= self._after_validation(log_likelihood)
                    if on_validation:
                        on_validation(progress, log_likelihood)
                    tick = time.monotonic()  # validation is not counted against the budget of training
                if progress.finished or time.monotonic() - saved > self.config.checkpoint_seconds:
                    self.save()
                    saved = time.monotonic()
        except OSError as error:  # a full disk or a lost folder; files are written whole or not at all
            told = f"training stopped at step {progress.step} ({error})"
            raise InputError(f"{told}; what is in {self.out} is whole: run the same command again.") from error
        finally:
            batches.close()  # type: ignore[attr-defined]
            bar.close()
            if self.world > 1:
                self.loss = Loss(self.model)  # DistributedDataParallel must end before its group does
        return progress

    def _step(self, batch: Batch) -> Tensor:
        config, step, share = self.config, self.progress.step, self._share()
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self._rate() * group["rate"]
        self.model.train()
        if share >= config.frozen_norms:
            for module in self.model.modules():
                if isinstance(module, BatchNorm):
                    module.eval()
        batch = batch.to(self.device)
        positions = self.stream.positions(step)
        q, weights = draw_labels(batch, self.train_data, config.labels_per_image, seed=config.seed, positions=positions)
        # one seed a step and rank: negatives and noise of a resumed run are those of an uninterrupted one
        seed = int(np.random.SeedSequence([config.seed, step, self.rank]).generate_state(1)[0])
        torch.manual_seed(seed)  # dropout; torch keeps only 32 bits of a seed
        generator = torch.Generator(device=self.device).manual_seed(seed)
        half = torch.autocast(self.device.type, torch.bfloat16, enabled=self.precision == torch.bfloat16)
        with half, sdpa_kernel(self.attention):
            options = {"window": batch.windows, "smoothing": config.label_width(share), "generator": generator}
            loss = self.loss(batch.images, q, weights=weights, **options)
        self.model.zero_grad(set_to_none=True)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), config.clip or math.inf)
        if not torch.isfinite(loss) or not torch.isfinite(norm):
            raise InputError(
                f"the loss or its gradient is not finite at step {step} (loss {float(loss.detach()):.4g}); "
                f"the last good checkpoint is in {self.out}; try a lower lr than {config.lr:g}."
            )
        for optimizer in self.optimizers:
            optimizer.step()
        self._average()
        return loss.detach()

    @torch.no_grad()
    def _average(self) -> None:
        """Move the running mean of the weights; its length is a share of the steps so far, as the first are noise."""
        length = max(1.0, self.config.averaging * self.progress.step)
        mean, now = list(self.average.state_dict().values()), list(self.model.state_dict().values())
        torch._foreach_lerp_(mean, now, 1 / length)

    @torch.no_grad()
    def validate(self) -> float:
        """Mean log-likelihood of held-out images under the averaged weights: over equivalents, then over images."""
        total = torch.zeros(2, dtype=torch.float64, device=self.device)
        limit = min(self.config.validation_size, len(self.valid_data))
        size = min(256, math.ceil(limit / self.world))
        for batch in held_out(self.average, self.valid_data, size, limit=limit, rank=self.rank, world=self.world):
            log_p = self.average(batch.images).log_prob(batch.rotations.transpose(0, 1)).double()
            real = torch.arange(log_p.shape[0], device=self.device)[:, None] < batch.counts
            total[0] += ((log_p * real).sum(0) / batch.counts).sum()
            total[1] += len(batch)
        if self.world > 1:
            dist.all_reduce(total)
        return float(total[0] / total[1])

    def _say(self, line: str) -> None:
        """A line above the bar."""
        if not self.quiet:
            tqdm.write(line, file=sys.stderr)

    def _after_validation(self, log_likelihood: float) -> bool:
        """Log, keep the best, and for the plateau schedule halve the rate or stop: whether to stop."""
        progress, plateau = self.progress, self.config.schedule == "plateau"
        improved = progress.improved(log_likelihood)
        stop = plateau and progress.bad_epochs >= self.config.patience and progress.halve()
        if self.rank:
            return stop
        train, ceiling = float(np.mean(self.recent)), getattr(getattr(self.average, "cells", None), "ceiling", None)
        record = {
            "step": progress.step,
            "images": progress.images,
            "elapsed": round(progress.elapsed, 3),
            "log_likelihood": log_likelihood,
            "train_log_likelihood": train,
            "lr": self._rate(),
            "smoothing": self.config.label_width(self._share()),
            "ceiling": ceiling,
        }
        self.folder.log(record)
        plain, info = folded(self.average), self._info(log_likelihood)
        for name in ("best", "last") if improved else ("last",):
            save_model(plain, self.out / f"{name}.safetensors", info)
        trained = "train, poses included," if getattr(self.model.config, "pose", False) else "train"  # its loss is of
        line = f"step {progress.step:>7,}  {progress.elapsed / 60:6.1f} min  LL valid {log_likelihood:7.3f}  "
        self._say(line + f"{trained} {train:7.3f}" + (f"  ceiling {ceiling:.2f}" if ceiling else ""))
        self._compare_rates()
        return stop

    def _compare_rates(self) -> None:
        """Say so where images come far more slowly than before, or people blame the recipe for a busy machine."""
        images, elapsed = self.progress.images, self.progress.elapsed
        rate = (images - self.mark[0]) / max(elapsed - self.mark[1], 1e-9)
        if rate < self.fastest / 2:
            self._say(f"{rate:,.0f} images/s, {self.fastest:,.0f} before: other work seems to keep this machine busy.")
        self.mark, self.fastest = (images, elapsed), max(self.fastest, rate)

    # State.

    def save(self) -> None:
        """Write the whole state. Only rank 0 writes."""
        if self.rank > 0:
            return
        parts = {"model": self.model.state_dict(), "average": self.average.state_dict()}
        parts["optimizer"] = optimizer_tensors(self.model, self.optimizers)
        tensors = {f"{part}.{name}": value for part, state in parts.items() for name, value in state.items()}
        self.folder.save(tensors, self.progress)

    def resume(self) -> None:
        """Take up the state in the run's folder, if there is one."""
        found = self.folder.load()
        if found is not None:
            tensors, self.progress = found
            parts: dict[str, dict[str, Tensor]] = {"model": {}, "average": {}, "optimizer": {}}
            for key, value in tensors.items():
                part, _, name = key.partition(".")
                parts[part][name] = value
            self.model.load_state_dict(parts["model"])
            self.average.load_state_dict(parts["average"])
            restore_optimizers(self.model, self.optimizers, parts["optimizer"])
            self._inherit()
        if self.rank == 0:
            self.folder.trim_log(self.progress.step)

    # Small questions.

    def _share(self) -> float:
        """How much of the schedule is behind us."""
        progress, config = self.progress, self.config
        return min(1.0, progress.elapsed / config.time_budget if config.time_budget else progress.step / config.steps)

    def _rate(self) -> float:
        return self.config.learning_rate(self._share()) * 0.5**self.progress.halvings

    def _clock(self, elapsed: float) -> float:
        """Rank 0's clock, where the schedule depends on it: all processes must use the same rate."""
        if self.world == 1 or not self.config.time_budget:
            return elapsed
        shared = torch.tensor([elapsed], dtype=torch.float64, device=self.device)
        dist.broadcast(shared, 0)
        return float(shared)

    def _count_unreadable(self, batch: Batch) -> None:
        progress = self.progress
        if not batch.unreadable:
            return
        progress.skipped += len(batch.unreadable)
        progress.skipped_names = [*progress.skipped_names, *batch.unreadable][-20:]
        self._say(f"skipped {batch.unreadable[0]}")
        if progress.skipped > MOST_UNREADABLE * max(progress.images + len(batch), 1000):
            raise InputError(
                f"more than {MOST_UNREADABLE:.0%} of the images cannot be read ({progress.skipped} so far, last "
                f"{batch.unreadable[-1]}); repair the data set and run again."
            )

    def _info(self, log_likelihood: float) -> dict[str, Any]:
        progress = self.progress
        return {
            "validation_log_likelihood": round(log_likelihood, 4),
            "measure": "pi^2",
            "steps": progress.step,
            "images_seen": progress.images,
            "hours": round(progress.elapsed / 3600, 3),
            "data": self.described,
            "classes": list(self.train_data.classes),
            "training": self.config.to_dict(),
            **progress.inherited.get("info", {}),
        }
