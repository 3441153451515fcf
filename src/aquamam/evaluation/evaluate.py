"""From a model and held-out images to figures that one can trust, the same on one process and on many.

Every number about an image is a pure function of model, image, seed and batch size: ranks share out whole batches, and
what they found is put together in the order of the data before anything is averaged.
"""

import math
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from aquamam.data.base import Batch, RotationDataset
from aquamam.errors import InputError, require
from aquamam.evaluation import metrics
from aquamam.evaluation.results import LEVELS, Case, Columns, Errors, Evaluation, Figures, Throughput
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.network.model import RotationModel
from aquamam.posterior.distribution import RotationDistribution, least_expected_error
from aquamam.training.calibrate import draw, score
from aquamam.training.held_out import held_out
from aquamam.training.start import check_images

STRATEGIES = ("greedy", "beam", "expected")
AROUND = 32  # evenly spaced rotations about a continuous axis that stand for it in the mean log-likelihood
WORST = 12  # cases to look at
NEAR_DEG = 15  # samples so close to a truth count as having found it


def evaluate(
    model: RotationModel,
    dataset: RotationDataset,
    *,
    limit: int | None = None,
    samples: int = 100,
    strategies: Sequence[str] | None = None,
    seed: int = 0,
    batch_size: int = 64,
    quiet: bool = False,
) -> Evaluation:
    """Judge a model on a data set, or on its first `limit` images; every process of a group gets the whole answer.

    samples: rotations drawn for each image; spread, calibration and the strategy "expected" come from them, and 0
    leaves them out. strategies: of "greedy", "beam" and "expected", the first of which gives the headline errors; None
    takes all that the model has.
    """
    _check(dataset, limit, samples, strategies, batch_size)
    check_images(model.config, dataset)
    rank, world = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    lost: list[str] = []
    title = None if quiet or rank else "evaluating"
    batches = held_out(model, dataset, batch_size, limit=limit, rank=rank, world=world, title=title, left_out=lost)
    mine = [_judge(model, batch, dataset, samples, strategies, seed) for batch in batches]
    found = [(mine, lost)] * world
    if world > 1:
        dist.all_gather_object(found, (mine, lost))
    judged = [one for part, _ in found for one in part]
    unreadable = tuple(name for _, names in found for name in names)
    if not judged:
        raise InputError(f"none of the {len(unreadable)} images can be read: {unreadable[0]}")
    medians = {name: float(np.median([one.rates[name] for one in judged])) for name in judged[0].rates}
    device = model.device
    throughput = Throughput(
        likelihoods=medians["likelihoods"],
        predictions={name: medians[name] for name in STRATEGIES if name in medians},
        samples=medians.get("samples", math.nan),
        batch_size=batch_size,
        device=str(device) if device.type == "cpu" else torch.cuda.get_device_name(device),
        threads=torch.get_num_threads(),
        processes=world,
    )
    return _conclude(judged, dataset, throughput=throughput, samples=samples, seed=seed, unreadable=unreadable)


def _check(
    dataset: RotationDataset, limit: int | None, samples: int, strategies: Sequence[str] | None, batch_size: int
) -> None:
    """Raise InputError unless there is something to judge, and a way."""
    chosen = STRATEGIES if strategies is None else strategies
    named = f"strategies are {', '.join(STRATEGIES)}, got {', '.join(chosen) or 'none'}."
    no_samples = "the strategy expected chooses among samples; ask for some, or leave it out."
    require(dataset.endless or len(dataset) > 0, "the data set is empty; choose another split.")
    require(limit is None or limit >= 1, f"at least 1 image is needed, got a limit of {limit}.")
    require(batch_size >= 1, f"a batch holds at least 1 image, got {batch_size}.")
    require(samples >= 0, f"samples must not be negative, got {samples}; 0 leaves out what needs them.")
    require(len(chosen) > 0 and set(chosen) <= set(STRATEGIES), named)
    require(samples > 0 or "expected" not in (strategies or ()), no_samples)


class _Judged(NamedTuple):
    """What became of a batch."""

    columns: Columns
    rates: dict[str, float]
    ceiling: float


@torch.no_grad()
def _judge(
    model: RotationModel, batch: Batch, dataset: RotationDataset, samples: int, strategies: Any, seed: int
) -> _Judged:
    """The numbers of each image of a batch, the rates at which they were found, and the ceiling."""
    truths, counts = _equivalents(batch, dataset)
    posterior, encoding = _timed(model, batch.images)
    log_p, scoring = _timed(posterior.log_prob, truths.transpose(0, 1))
    columns: Columns = {
        "index": torch.tensor(batch.indices),
        "label": torch.tensor([dataset.classes.index(label) for label in batch.labels]),
        "listed": batch.counts,
        "log_likelihood": metrics.image_log_likelihood(log_p.double(), counts),
        "truth": batch.rotations[:, 0],
    }
    rates = {"likelihoods": log_p.numel() / (encoding + scoring)}
    if samples:
        drawn, drawing = _timed(draw, posterior, batch, samples, seed)
        rates["samples"] = len(batch) * samples / (encoding + drawing)
        distance = _errors(drawn.q, batch, dataset)
        columns["spread"] = distance.mean(0)
        columns["found"] = (distance <= math.radians(NEAR_DEG)).float().mean(0)
        columns["pit"] = score(drawn, batch, dataset, seed)
        if (scores := model.calibration.scores) is not None:
            # ranked among as many samples as the scores were, as `region` does
            ranked = drawn if samples == scores.samples else draw(posterior, batch, scores.samples, seed)
            rank = score(ranked, batch, dataset, seed)
            for level in LEVELS:
                columns[f"held{round(100 * level)}"] = rank <= scores.mass(level, ranked.spread)
    # without cells there is no beam, without samples no least expected error
    lacks = {"beam"} if type(posterior.unwrapped)._topk is RotationDistribution._topk else set()
    lacks |= set() if samples else {"expected"}
    for name in strategies or [name for name in STRATEGIES if name not in lacks]:
        if name == "expected":  # what predict("expected") does, with the samples at hand
            predicted, seconds = _timed(least_expected_error, drawn.q)
            seconds += drawing
        else:
            predicted, seconds = _timed(posterior.predict, name)
        rates[name] = len(batch) / (encoding + seconds)
        columns[f"prediction.{name}"] = predicted = predicted.to(batch.rotations)
        columns[f"error.{name}"] = _errors(predicted, batch, dataset)
        columns[f"plain.{name}"] = metrics.rotation_error(predicted, batch.rotations[:, :1])
    kept = {name: c.cpu().double() if c.is_floating_point() else c.cpu() for name, c in columns.items()}
    return _Judged(kept, rates, float(posterior.ceiling))


def _timed(function: Any, *args: Any) -> tuple[Any, float]:
    """What a function returns, and its seconds."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    wait()
    start = time.perf_counter()
    result = function(*args)
    wait()
    return result, time.perf_counter() - start


def _equivalents(batch: Batch, dataset: RotationDataset) -> tuple[Tensor, Tensor]:
    """Truths (batch, equivalents, 4) whose likelihood is averaged, and how many: the data's, or else the group's."""
    parts: list[tuple[Tensor, Tensor]] = []
    for rows, group in _rows(batch, dataset):
        rows = rows[batch.counts[rows] == 1]
        if group is not None and len(rows):
            parts.append((rows, group.equivalents(batch.rotations[rows, 0], AROUND)))
    most = max([batch.rotations.shape[1], *(q.shape[1] for _, q in parts)])
    repeated = torch.arange(most, device=batch.rotations.device) % batch.rotations.shape[1]
    truths, counts = batch.rotations[:, repeated], batch.counts.clone()
    for rows, q in parts:
        truths[rows, : q.shape[1]] = q
        counts[rows] = q.shape[1]
    return truths, counts


def _errors(q: Tensor, batch: Batch, dataset: RotationDataset) -> Tensor:
    """Angles from rotations (*shape, batch, 4) to the nearest truths."""
    error = torch.empty(q.shape[:-1], dtype=q.dtype, device=q.device)
    for rows, group in _rows(batch, dataset):
        error[..., rows] = metrics.rotation_error(q[..., rows, :], batch.rotations[rows].to(q.dtype), group)
    return error


def _rows(batch: Batch, dataset: RotationDataset) -> Iterator[tuple[Tensor, SymmetryGroup | None]]:
    """The rows of each class and its symmetry."""
    for label in sorted(set(batch.labels)):
        rows = [i for i, name in enumerate(batch.labels) if name == label]
        yield torch.tensor(rows, device=batch.rotations.device), dataset.symmetry(label)


def _conclude(judged: list[_Judged], dataset: RotationDataset, **rest: Any) -> Evaluation:
    """Figures of the whole and of each class, and the cases to look at."""
    order = torch.cat([one.columns["index"] for one in judged]).argsort()  # of the data, whichever process had them
    columns = {name: torch.cat([one.columns[name] for one in judged])[order] for name in judged[0].columns}
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
        one = {name: column[i] for name, column in columns.items()}
        return Case(
            index=index,
            name=dataset.name(index),
            label=dataset.label(index),
            log_likelihood=float(one["log_likelihood"]),
            error_deg=math.degrees(one[f"error.{first}"]),
            plain_error_deg=math.degrees(one[f"plain.{first}"]),
            found=float(one.get("found", math.nan)),
            truth=tuple(one["truth"].tolist()),
            prediction=tuple(one[f"prediction.{first}"].tolist()),
        )

    by_error = columns[f"error.{first}"].argsort(descending=True, stable=True)[:WORST]
    by_likelihood = columns["log_likelihood"].argsort(stable=True)[:WORST]
    return Evaluation(
        figures=Figures.of_columns(columns, first),
        classes=classes,
        class_mean=Figures.mean(list(classes.values())),
        strategies={name: Errors.of(columns[f"error.{name}"]) for name in strategies},
        plain={name: Errors.of(columns[f"plain.{name}"]) for name in strategies},
        symmetries=symmetries,
        ceiling=max(one.ceiling for one in judged),
        worst=tuple(case(i) for i in by_error.tolist()),
        unlikely=tuple(case(i) for i in by_likelihood.tolist()),
        columns=columns,
        **rest,
    )
