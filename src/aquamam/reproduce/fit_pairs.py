"""Fitting a model to pairs: Adam on the exact expected loss or on random batches, resumable to the bit."""

import json
import math
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn
from tqdm import tqdm

from aquamam.baselines.base import Baseline
from aquamam.checkpoints.checkpoint import load_tensors, save_tensors
from aquamam.errors import InputError
from aquamam.reproduce.pairs import Pairs, Sentences
from aquamam.network.model import AQuaMaM

SAVE_EVERY = 20.0  # seconds between two saved states
PATIENCE = 5  # plateau: epochs without improvement before the rate is halved


@dataclass(frozen=True, kw_only=True)
class FitConfig:
    """How to fit; a saved state continues only under the same settings."""

    batches: str = "expected"  # the exact expected loss, or "sampled": random batches
    batch_size: int = 128  # for sampled batches
    steps: int = 700
    lr: float = 3e-3  # the largest
    decay: str = (
        "exponential"  # "plateau": halved after five epochs without improvement; "cosine": after 1,000 steps of warm-up
    )
    epoch: int = 313  # steps; plateau only
    beta2: float = 0.95
    eps: float = 1e-12
    component_rate: float = 10.0  # learning rate of the component embeddings g, as a multiple of lr
    head_rate: float = 3.0  # and of the head
    seed: int = 0

    def __post_init__(self) -> None:
        if self.batches not in ("expected", "sampled"):
            raise InputError(f"batches must be expected or sampled, got {self.batches!r}.")
        if self.decay not in ("exponential", "plateau", "cosine"):
            raise InputError(f"decay must be exponential, plateau or cosine, got {self.decay!r}.")
        if self.steps < 1 or self.batch_size < 1 or self.epoch < 1:
            raise InputError(
                f"steps, batch_size and epoch must be positive, got {self.steps}, {self.batch_size} and {self.epoch}."
            )
        if not 0 < self.lr < math.inf:
            raise InputError(f"lr must be a positive number, got {self.lr}.")
        if not 0 <= self.seed < 2**31:
            raise InputError(f"seed must lie in [0, 2^31), got {self.seed}.")


# Ours. Nearly all bins never occur, and their gradients shrink with their probability, so Adam must forget large gradients soon (beta2)
# and see tiny ones (eps); a larger rate for the head pushes them down. Two rotations of the toy's last viewpoint differ by 1.7e-4 in q_x;
# telling them apart takes large weights in g (its larger rate) and calm elsewhere (the early decay).
FAST = FitConfig()
# Section A.5.1 of the paper: 624 epochs of 40,000 samples.
PAPER = FitConfig(
    batches="sampled",
    steps=624 * 313,
    lr=1e-4,
    decay="plateau",
    beta2=0.999,
    eps=1e-9,
    component_rate=1.0,
    head_rate=1.0,
)
RECIPES = {"fast": FAST, "paper": PAPER}


class _Fit:
    """One fit of a model to pairs, whatever its loss. `curve` holds the loss before each step."""

    offset = 0.0  # what a log-likelihood adds to minus the loss

    def __init__(self, model: nn.Module, pairs: Pairs, config: FitConfig, state: Path | None, device: str | None):
        self.model, self.pairs, self.config, self.state = model.to(device or "cpu"), pairs, config, state
        rates = {"components": config.component_rate, "head": config.head_rate, "first_head": config.head_rate}
        groups = [
            {"params": list(part.parameters()), "scale": rates.get(name, 1.0)} for name, part in model.named_children()
        ]
        groups.append({"params": list(model.parameters(recurse=False)), "scale": 1.0})
        self.optimizer = torch.optim.Adam(groups, config.lr, betas=(0.9, config.beta2), eps=config.eps, fused=True)
        self.curve: list[float] = []
        self.seconds = self.cpu_seconds = 0.0  # of all sessions; on a shared machine the second is the fairer
        self.lr, self.best, self.bad_epochs, self.idle_halvings = config.lr, math.inf, 0, 0
        self._identity = {"fit": asdict(config), "model": model.config.to_dict()}  # type: ignore[union-attr,operator]

    def loss(self, weight: Float[Tensor, "pairs"], step: int) -> Float[Tensor, ""]:
        """The mean loss of pairs with these weights, which sum to one."""
        raise NotImplementedError(f"{type(self).__name__} must define loss.")

    @property
    def finished(self) -> bool:
        """All steps done, or the rate halved twice in a row for nothing (plateau)."""
        return len(self.curve) >= self.config.steps or self.idle_halvings >= 2

    def run(self, title: str = "fit") -> None:
        """Go on to the end from the saved state, if there is one; Ctrl-C saves first. The fitted model is left on the CPU."""
        self.resume()
        saved = tick = time.monotonic()
        cpu = time.process_time()
        bar = tqdm(total=self.config.steps, initial=len(self.curve), desc=title, unit="step", disable=None)
        with bar, _interrupts_between_steps() as interrupted:
            while not self.finished:
                self.curve.append(self.step(len(self.curve)))
                now = time.monotonic()
                cpu_now = time.process_time()
                self.seconds, self.cpu_seconds = self.seconds + now - tick, self.cpu_seconds + cpu_now - cpu
                tick, cpu = now, cpu_now
                bar.set_postfix_str(f"LL {self.offset - self.curve[-1]:.4f}", refresh=False)
                bar.update()
                if interrupted() or self.finished or now - saved > SAVE_EVERY:
                    self.save()
                    saved = time.monotonic()
                if interrupted():
                    raise KeyboardInterrupt
        self.model.cpu()

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def step(self, step: int) -> float:
        """One optimiser step; returns the loss before it: exact and expected, or of a batch."""
        self._set_rate(step)
        loss = self.loss(self._weights(step), step)
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return float(loss.detach())

    def expected_nll(self) -> float:
        """The expected loss now."""
        with torch.no_grad():
            return float(self.loss(self.pairs.weight.float(), len(self.curve)))

    def _weights(self, step: int) -> Float[Tensor, "pairs"]:
        weight = self.pairs.weight
        if self.config.batches == "expected":
            return weight.float()
        # a batch is a pure function of seed and step: nothing random to save
        random = np.random.default_rng([self.config.seed, step])
        drawn = random.multinomial(self.config.batch_size, weight.numpy())
        return torch.from_numpy(drawn).float() / self.config.batch_size

    def _set_rate(self, step: int) -> None:
        if self.config.decay == "exponential":
            self.lr = self.config.lr * warm_up_and_decay(step / self.config.steps)
        elif self.config.decay == "cosine":
            share = min(1.0, step / self.config.steps)
            self.lr = self.config.lr * min(1.0, (step + 1) / 1000) * (1 + math.cos(math.pi * share)) / 2
        elif step and step % self.config.epoch == 0:
            self._look_for_plateau(self.expected_nll())
        for group in self.optimizer.param_groups:
            group["lr"] = self.lr * group["scale"]

    def _look_for_plateau(self, nll: float) -> None:
        if nll < self.best:
            self.best, self.bad_epochs, self.idle_halvings = nll, 0, 0
            return
        self.bad_epochs += 1
        if self.bad_epochs == PATIENCE:
            self.lr, self.bad_epochs, self.idle_halvings = self.lr / 2, 0, self.idle_halvings + 1

    def save(self) -> None:
        """Write the state atomically, if there is a place for it."""
        if self.state is None:
            return
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        for name, parameter in self.model.named_parameters():
            tensors.update({f"{key}.{name}": value for key, value in self.optimizer.state[parameter].items()})
        tensors["curve"] = torch.tensor(self.curve, dtype=torch.float64)
        numbers = {
            key: getattr(self, key) for key in ("seconds", "cpu_seconds", "lr", "best", "bad_epochs", "idle_halvings")
        }
        save_tensors(self.state, tensors, {**self._identity, "numbers": numbers})

    def resume(self) -> None:
        """Continue from the saved state, if there is one; it must be of this very fit."""
        if self.state is None or not self.state.exists():
            return
        tensors, description = load_tensors(self.state)
        if any(description.get(key) != value for key, value in json.loads(json.dumps(self._identity)).items()):
            raise InputError(
                f"{self.state} is of a run with other settings; choose another --out, or delete it to start afresh."
            )
        self.model.load_state_dict(
            {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
        )
        for name, parameter in self.model.named_parameters():
            self.optimizer.state[parameter] = {
                k: tensors[f"{k}.{name}"].to(self.device) for k in ("step", "exp_avg", "exp_avg_sq")
            }
        self.curve = tensors["curve"].tolist()
        for key, value in description["numbers"].items():
            setattr(self, key, value)


class Fit(_Fit):
    """AQuaMaM; `curve` holds the NLL of a sentence before each step, exact and expected, or of the batch's sentences."""

    model: AQuaMaM

    def __init__(
        self,
        model: AQuaMaM,
        sentences: Sentences,
        config: FitConfig,
        state: Path | None = None,
        device: str | None = None,
    ):
        super().__init__(model, sentences.pairs, config, state, device)
        self.sentences = sentences
        self.offset = float(sentences.mean(sentences.log_factor))

    def loss(self, weight: Float[Tensor, "pairs"], step: int) -> Float[Tensor, ""]:
        some = weight.nonzero().squeeze(1)  # a batch of 128 leaves out a third of the pairs
        return -(weight[some].to(self.device) * self.sentences.log_probs(self.model, some)).sum()


class BaselineFit(_Fit):
    """Any other system by its own loss; `curve` holds that loss, minus a log-likelihood where the system has one to train on."""

    model: Baseline

    def __init__(
        self,
        model: Baseline,
        pairs: Pairs,
        config: FitConfig,
        state: Path | None = None,
        device: str | None = None,
    ):
        super().__init__(model, pairs, config, state, device)
        self.q, self._row = pairs.side_by_side()

    def loss(self, weight: Float[Tensor, "pairs"], step: int) -> Float[Tensor, ""]:
        weights = torch.zeros(self.q.shape[:2])
        weights[self._row, self.pairs.category] = weight * self.pairs.categories  # the loss is a mean over categories
        # noise is a function of seed and step, so that a resumed fit equals an uninterrupted one
        seed = int(np.random.SeedSequence([self.config.seed, step]).generate_state(1)[0])
        generator = torch.Generator(self.device).manual_seed(seed)
        q, weights = self.q.to(self.device), weights.to(self.device)
        return self.model.loss(torch.arange(self.pairs.categories), q, weights=weights, generator=generator)


def warm_up_and_decay(share: float) -> float:
    """Learning rate at a share of the steps: up in a line over the first tenth, then down to a hundredth, exponentially."""
    if share < 0.1:
        return 0.04 + 0.96 * share / 0.1
    return 0.01 ** ((share - 0.1) / 0.9)


@contextmanager
def _interrupts_between_steps() -> Iterator[Callable[[], bool]]:
    """Ctrl-C waits for the end of a step, so that what is saved is whole; a second Ctrl-C does not wait."""
    pressed = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield pressed.is_set
        return

    def handler(number: int, frame: object) -> None:
        if pressed.is_set():
            raise KeyboardInterrupt
        pressed.set()

    before = signal.signal(signal.SIGINT, handler)
    try:
        yield pressed.is_set
    finally:
        signal.signal(signal.SIGINT, before)
