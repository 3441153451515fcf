"""What a training run tells people: a bar, and a line for each validation, which says when the machine is busy."""

import sys
from collections import deque

import numpy as np
from tqdm import tqdm

from aquamam.training.config import TrainConfig
from aquamam.training.runfolder import Progress


class Display:
    """The bar counts steps, or seconds where the schedule does."""

    def __init__(self, config: TrainConfig, progress: Progress, quiet: bool, *, poses: bool = False):
        self.progress, self.quiet, self.by_clock = progress, quiet, config.time_budget > 0
        total = config.time_budget if self.by_clock else config.steps if config.schedule == "cosine" else None
        self.bar = tqdm(
            total=total and round(total),
            initial=self._now(),
            unit="s" if self.by_clock else "step",
            disable=quiet or None,
            dynamic_ncols=True,
        )
        self.recent: deque[float] = deque(maxlen=20)  # log-likelihoods of training batches
        self.trained = "train, poses included," if poses else "train"  # what the loss is of
        self.mark, self.fastest = (progress.images, progress.elapsed), 0.0  # images a second between validations

    def _now(self) -> int:
        return round(self.progress.elapsed) if self.by_clock else self.progress.step

    def say(self, line: str) -> None:
        """A line above the bar."""
        if not self.quiet:
            tqdm.write(line, file=sys.stderr)

    def step(self, log_likelihood: float) -> None:
        """The bar as of now."""
        progress = self.progress
        self.recent.append(log_likelihood)
        rate = progress.images / max(progress.elapsed, 1e-9)
        text = f"LL {np.mean(self.recent):.3f}, best valid {progress.best:.3f}, {rate:.0f} img/s"
        self.bar.set_postfix_str(text, refresh=False)
        self.bar.update(self._now() - self.bar.n)

    def validated(self, log_likelihood: float, train: float, ceiling: float | None) -> None:
        """One line for a validation."""
        progress = self.progress
        line = f"step {progress.step:>7,}  {progress.elapsed / 60:6.1f} min  "
        line += f"LL valid {log_likelihood:7.3f}  {self.trained} {train:7.3f}"
        self.say(line + (f"  ceiling {ceiling:.2f}" if ceiling else ""))
        images, seconds = progress.images - self.mark[0], progress.elapsed - self.mark[1]
        self.mark, rate = (progress.images, progress.elapsed), images / max(seconds, 1e-9)
        if rate < self.fastest / 2:
            self.say(f"{rate:,.0f} images/s, {self.fastest:,.0f} before: other work seems to keep this machine busy.")
        self.fastest = max(self.fastest, rate)

    def close(self) -> None:
        self.bar.close()
