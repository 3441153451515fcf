"""Images that a model was not trained on, batch by batch: what validation, calibration and evaluation look at."""

from collections.abc import Iterator
from contextlib import closing

from tqdm import tqdm

from aquamam.data.base import Batch, RotationDataset
from aquamam.data.stream import one_pass
from aquamam.network.model import RotationModel


def held_out(
    model: RotationModel,
    dataset: RotationDataset,
    batch_size: int = 100,
    *,
    limit: int | None = None,
    rank: int = 0,
    world: int = 1,
    title: str | None = None,
    left_out: list[str] | None = None,
) -> Iterator[Batch]:
    """Batches of the data, or of its first `limit` images, on the model's device; the model is in evaluation mode
    meanwhile.

    Rank r takes every world-th batch. Images that cannot be read are named in the list `left_out`. A `title` stands
    before a bar.
    """
    batches = one_pass(dataset, batch_size, rank=rank, world=world, limit=limit, unreadable="skip")
    total = limit if dataset.endless else min(len(dataset), limit or len(dataset))
    training = model.training
    with (
        closing(batches),  # type: ignore[type-var]
        tqdm(total=total, unit="img", desc=title, dynamic_ncols=True, disable=None if title else True) as bar,
    ):
        model.eval()
        try:
            for batch in batches:
                if len(batch):
                    yield batch.to(model.device)
                if left_out is not None:
                    left_out += batch.unreadable
                bar.update(min((len(batch) + len(batch.unreadable)) * world, bar.total - bar.n))
        finally:
            model.train(training)
