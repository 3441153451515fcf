"""From a model and held-out images to figures that one can trust, the same on one process and on many.

Every number about an image is a pure function of model, image, seed and batch size: ranks share out whole batches, and
what they found is put together in the order of the data before anything is averaged.
"""

import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from tqdm import tqdm

from aquamam.evaluation import metrics
from aquamam.data.base import Batch, RotationDataset
from aquamam.data.random import uniforms, words
from aquamam.data.stream import one_pass
from aquamam.posterior.distribution import RotationDistribution
from aquamam.posterior.regions import density_pit
from aquamam.errors import InputError
from aquamam.evaluation.results import Case, Columns, Errors, Evaluation, Figures, Throughput
from aquamam.geometry.rotations import multiply
from aquamam.geometry.symmetry import SymmetryGroup

STRATEGIES = ("greedy", "beam", "expected")
TURNS = 32  # evenly spaced turns about a continuous axis that stand for it in the mean log-likelihood
NEAR_DEG = 15  # samples so close to a truth count as having found it


def evaluate(
    model: nn.Module,
    dataset: RotationDataset,
    *,
    limit: int | None = None,
    samples: int = 100,
    strategies: Sequence[str] | None = None,
    seed: int = 0,
    batch_size: int = 64,
    worst: int = 12,
    threads: int = 2,
    quiet: bool = False,
) -> Evaluation:
    """Judge a model on a data set, or on its first `limit` images; every process of a group gets the whole answer.

    samples: rotations drawn for each image; spread, calibration and the strategy "expected" come from them, and 0
    leaves them out. strategies: of "greedy", "beam" and "expected", the first of which gives the headline errors; None
    takes all that the model has.
    """
    _check(model, dataset, limit, samples, strategies, batch_size)
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    batches = one_pass(dataset, batch_size, rank=rank, world=world, limit=limit, threads=threads, unreadable="skip")
    total = limit if dataset.endless else min(len(dataset), limit or len(dataset))
    bar = tqdm(total=total, unit="img", dynamic_ncols=True, desc="evaluating", disable=True if quiet or rank else None)
    mine, training = _Found(), model.training
    model.eval()
    try:
        for step, batch in enumerate(batches):
            number = rank + step * world  # of the batch, whoever works on it
            mine.add(batch, *_judge(model, batch, dataset, samples, strategies, seed, number))
            bar.set_postfix_str(f"LL {mine.mean:.3f}", refresh=False)
            bar.update(min((len(batch) + len(batch.unreadable)) * world, bar.total - bar.n))
    finally:
        batches.close()  # type: ignore[attr-defined]
        bar.close()
        model.train(training)
    found = [mine] * world
    if world > 1:
        dist.all_gather_object(found, mine)
    unreadable = tuple(name for part in found for name in part.unreadable)
    columns = _joined([part for each in found for part in each.parts], unreadable)
    timings = [timing for each in found for timing in each.timings]
    return _conclude(
        columns,
        dataset,
        ceiling=max(each.ceiling for each in found),
        throughput=_throughput(timings, batch_size, next(model.parameters()).device, world),
        samples=samples,
        seed=seed,
        worst=worst,
        unreadable=unreadable,
    )


@dataclass
class _Found:
    """What one process found, batch by batch."""

    parts: list[Columns] = field(default_factory=list)
    timings: list[dict[str, float]] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)
    ceiling: float = -math.inf
    images: int = 0
    total: float = 0.0  # log-likelihood

    def add(self, batch: Batch, columns: Columns, timing: dict[str, float], ceiling: float) -> None:
        self.unreadable += batch.unreadable
        if len(batch):
            self.parts.append(columns)
            self.timings.append(timing)
            self.ceiling = max(self.ceiling, ceiling)
            self.images += len(batch)
            self.total += float(columns["log_likelihood"].sum())

    @property
    def mean(self) -> float:
        return self.total / max(self.images, 1)


def _joined(parts: list[Columns], unreadable: Sequence[str]) -> Columns:
    """All images in the order of the data, whichever process judged them."""
    if not parts:
        raise InputError(f"none of the {len(unreadable)} images can be read: {unreadable[0]}")
    order = torch.cat([part["index"] for part in parts]).argsort()
    return {name: torch.cat([part[name] for part in parts])[order] for name in parts[0]}


@torch.no_grad()
def _judge(
    model: nn.Module,
    batch: Batch,
    dataset: RotationDataset,
    samples: int,
    strategies: Sequence[str] | None,
    seed: int,
    number: int,
) -> tuple[Columns, dict[str, float], float]:
    """The numbers of each image of a batch, the rates at which they were found, and the ceiling."""
    if not len(batch):
        return {}, {}, -math.inf
    batch = batch.to(next(model.parameters()).device)
    clock = _Clock(batch.images.device)
    truths, counts = _equivalents(batch, dataset)
    indices = np.array(batch.indices, np.int64)
    posterior: RotationDistribution = clock("encode", model, batch.images)
    log_p = clock("likelihoods", posterior.log_prob, truths.transpose(0, 1))
    columns: Columns = {
        "index": torch.from_numpy(indices),
        "label": torch.tensor([dataset.classes.index(label) for label in batch.labels]),
        "listed": batch.counts,
        "log_likelihood": metrics.image_log_likelihood(log_p.double(), counts),
        "truth": batch.rotations[:, 0],
    }
    drawn = None
    if samples:
        word = int(words(seed, "evaluation/samples", np.array([number]), 1)[0, 0])
        generator = torch.Generator(device=batch.images.device).manual_seed(word >> 1)
        drawn = clock("samples", posterior.sample, (samples,), generator=generator)
        distance = _errors(drawn, batch, dataset)
        columns["spread"] = distance.mean(0)
        columns["found"] = (distance <= math.radians(NEAR_DEG)).float().mean(0)
        u = torch.from_numpy(uniforms(seed, "evaluation/rank", indices, 1)[:, 0]).to(log_p)
        reference = posterior.log_prob(
            _one_truth(batch, dataset, seed).to(drawn.dtype)
        )  # one dtype: ties must stay ties
        columns["pit"] = density_pit(reference, posterior.log_prob(drawn), u)
    for name in strategies or _offered(posterior, samples):
        if name == "expected":  # what predict("expected") does, with the samples at hand
            assert drawn is not None
            predicted = clock(name, metrics.least_expected_error, drawn)
        else:
            predicted = clock(name, posterior.predict, name)
        columns[f"prediction.{name}"] = predicted = predicted.to(batch.rotations)
        columns[f"error.{name}"] = _errors(predicted, batch, dataset)
        columns[f"plain.{name}"] = metrics.rotation_error(predicted, batch.rotations[:, :1])
    rates = _rates(clock.seconds, images=len(batch), scored=log_p.numel(), samples=samples)
    kept = {name: column.detach().cpu() for name, column in columns.items()}
    kept = {name: c.double() if c.is_floating_point() else c for name, c in kept.items()}
    return kept, rates, float(posterior.ceiling)


def _equivalents(batch: Batch, dataset: RotationDataset) -> tuple[Tensor, Tensor]:
    """Truths (batch, equivalents, 4) whose likelihood is averaged, and how many are real: those of the data, or the
    group's."""
    parts = [(rows, group.equivalents(batch.rotations[rows, 0], TURNS)) for rows, group in _alone(batch, dataset)]
    most = max([batch.rotations.shape[1], *(q.shape[1] for _, q in parts)])
    repeated = torch.arange(most, device=batch.rotations.device) % batch.rotations.shape[1]
    truths, counts = batch.rotations[:, repeated], batch.counts.clone()
    for rows, q in parts:
        truths[rows, : q.shape[1]] = q
        counts[rows] = q.shape[1]
    return truths, counts


def _alone(batch: Batch, dataset: RotationDataset) -> Iterator[tuple[Tensor, SymmetryGroup]]:
    """The rows whose other truths are not listed but follow from a group."""
    for label, rows in _rows(batch):
        rows = rows[batch.counts[rows] == 1]
        group = dataset.symmetry(label)
        if group is not None and len(rows):
            yield rows, group


def _one_truth(batch: Batch, dataset: RotationDataset, seed: int) -> Tensor:
    """One of each image's equivalent truths, drawn evenly: what the model's distribution should be the distribution of.

    The pictured rotation would do where it was drawn evenly itself, which a user's data set need not have done.
    """
    numbers = uniforms(seed, "evaluation/truth", np.array(batch.indices, np.int64), 2)
    u = torch.from_numpy(numbers).to(batch.rotations)
    pick = (u[:, :1] * batch.counts[:, None]).long()
    q = batch.rotations.gather(1, pick[..., None].expand(-1, -1, 4))[:, 0]
    for rows, group in _alone(batch, dataset):
        q[rows] = multiply(q[rows], group.element(u[rows]).to(q))
    return q


def _errors(q: Tensor, batch: Batch, dataset: RotationDataset) -> Tensor:
    """Angles from rotations (*shape, batch, 4) to the nearest truths."""
    error = torch.empty(q.shape[:-1], dtype=q.dtype, device=q.device)
    for label, rows in _rows(batch):
        truths = batch.rotations[rows].to(q.dtype)
        error[..., rows] = metrics.rotation_error(q[..., rows, :], truths, dataset.symmetry(label))
    return error


def _rows(batch: Batch) -> Iterator[tuple[str, Tensor]]:
    """The rows of each class."""
    for label in sorted(set(batch.labels)):
        rows = [i for i, name in enumerate(batch.labels) if name == label]
        yield label, torch.tensor(rows, device=batch.rotations.device)


def _offered(posterior: RotationDistribution, samples: int) -> tuple[str, ...]:
    """The strategies that a model has: without cells there is no beam, without samples no least expected error."""
    lacks = {"beam"} if type(posterior.unwrapped)._topk is RotationDistribution._topk else set()
    return tuple(name for name in STRATEGIES if name not in (lacks if samples else lacks | {"expected"}))


class _Clock:
    """Seconds of each call by name."""

    def __init__(self, device: torch.device):
        self.device = device
        self.seconds: dict[str, float] = {}

    def __call__(self, name: str, function: Any, *args: Any, **options: Any) -> Any:
        self._wait()
        start = time.perf_counter()
        result = function(*args, **options)
        self._wait()
        self.seconds[name] = time.perf_counter() - start
        return result

    def _wait(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _rates(seconds: dict[str, float], *, images: int, scored: int, samples: int) -> dict[str, float]:
    """Per second, each with the encoding of its images."""
    encode = seconds["encode"]
    rates = {"likelihoods": scored / (encode + seconds["likelihoods"])}
    if samples:
        rates["samples"] = images * samples / (encode + seconds["samples"])
    for name in STRATEGIES:
        if name in seconds:
            drawing = seconds["samples"] if name == "expected" else 0.0
            rates[name] = images / (encode + drawing + seconds[name])
    return rates


def _throughput(timings: list[dict[str, float]], batch_size: int, device: torch.device, world: int) -> Throughput:
    medians = {name: float(np.median([timing[name] for timing in timings])) for name in timings[0]}
    return Throughput(
        likelihoods=medians["likelihoods"],
        predictions={name: medians[name] for name in STRATEGIES if name in medians},
        samples=medians.get("samples", math.nan),
        batch_size=batch_size,
        device=str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        threads=torch.get_num_threads(),
        processes=world,
    )


def _conclude(columns: Columns, dataset: RotationDataset, *, worst: int, **rest: Any) -> Evaluation:
    """Figures of the whole and of each class, and the cases to look at."""
    strategies = [name.removeprefix("error.") for name in columns if name.startswith("error.")]
    first = strategies[0]
    classes, symmetries = {}, {}
    for number in columns["label"].unique().tolist():
        name, rows = dataset.classes[number], columns["label"] == number
        classes[name] = Figures.of_columns({key: column[rows] for key, column in columns.items()}, first)
        listed = bool((columns["listed"][rows] > 1).any())
        symmetries[name] = "known" if dataset.symmetry(name) is not None else "listed" if listed else "unknown"

    def case(i: int) -> Case:
        index = int(columns["index"][i])
        return Case(
            index=index,
            name=dataset.name(index),
            label=dataset.label(index),
            log_likelihood=float(columns["log_likelihood"][i]),
            error_deg=math.degrees(columns[f"error.{first}"][i]),
            plain_error_deg=math.degrees(columns[f"plain.{first}"][i]),
            found=float(columns["found"][i]) if "found" in columns else math.nan,
            truth=tuple(columns["truth"][i].tolist()),
            prediction=tuple(columns[f"prediction.{first}"][i].tolist()),
        )

    by_error = columns[f"error.{first}"].argsort(descending=True, stable=True)[:worst]
    by_likelihood = columns["log_likelihood"].argsort(stable=True)[:worst]
    return Evaluation(
        figures=Figures.of_columns(columns, first),
        classes=classes,
        class_mean=Figures.mean(list(classes.values())),
        strategies={name: Errors.of(columns[f"error.{name}"]) for name in strategies},
        plain={name: Errors.of(columns[f"plain.{name}"]) for name in strategies},
        symmetries=symmetries,
        worst=tuple(case(i) for i in by_error.tolist()),
        unlikely=tuple(case(i) for i in by_likelihood.tolist()),
        columns=columns,
        **rest,
    )


def _check(
    model: nn.Module,
    dataset: RotationDataset,
    limit: int | None,
    samples: int,
    strategies: Sequence[str] | None,
    batch_size: int,
) -> None:
    """Everything that a user can get wrong, before any work."""
    config: Any = model.config
    if "category" in (getattr(config, "embedding", ""), getattr(config, "encoder", "")):
        raise InputError("this model reads categories and cannot be evaluated on images; `aquamam reproduce toy` does.")
    if not dataset.endless and len(dataset) == 0:
        raise InputError("the data set is empty; choose another split.")
    if limit is not None and limit < 1:
        raise InputError(f"at least 1 image is needed, got a limit of {limit}.")
    if batch_size < 1:
        raise InputError(f"a batch holds at least 1 image, got {batch_size}.")
    if samples < 0:
        raise InputError(f"samples must not be negative, got {samples}; 0 leaves out what needs them.")
    unknown = [name for name in strategies or () if name not in STRATEGIES]
    if unknown or (strategies is not None and not len(strategies)):
        raise InputError(f"strategies are {', '.join(STRATEGIES)}, got {', '.join(unknown) or 'none'}.")
    if strategies and "expected" in strategies and not samples:
        raise InputError("the strategy expected chooses among samples; ask for some, or leave it out.")
    size = getattr(config, "image_size", None)
    if dataset.image_size is not None and size is not None and tuple(dataset.image_size) != (size, size):
        height, width = dataset.image_size
        raise InputError(
            f"the model reads {size} x {size} images and the data has {height} x {width}; open it with size={size}."
        )
