"""Streams of batches: seeded, shared between ranks, resumed by step, whatever the number of threads."""

import threading
from itertools import islice

import numpy as np
import pytest
import torch
from refusals import refused
from synthetic import Listed, numbers

from aquamam.data.augment import augmentation
from aquamam.data.base import UnreadableExample, decode_image
from aquamam.data.renders import RenderedDataset
from aquamam.data.stream import Stream, one_pass, prefetch
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid

SETTINGS = RenderSettings(size=8, supersample=1)


def listed(length: int, bad: tuple[int, ...] = ()) -> Listed:
    """Examples of one to three rotations."""
    return Listed([np.tile([0.0, 0, 0, 1], (1 + i % 3, 1)) for i in range(length)], classes=("even", "odd"), broken=bad)


def shown(batch) -> list[int]:
    return numbers(batch.images).tolist()


def test_every_epoch_shows_every_example_once_over_all_ranks_and_batches_stay_full():
    streams = [Stream(dataset=listed(35), batch_size=5, rank=r, world=2, seed=1) for r in range(2)]
    seen = [i for step in range(14) for s in streams for i in shown(s.batch(step))]
    for epoch in range(4):  # three and a half steps each
        of_epoch = seen[35 * epoch : 35 * epoch + 35]
        assert sorted(of_epoch) == list(range(35))
        assert of_epoch != sorted(of_epoch)


def test_seed_and_step_decide_a_batch_whatever_the_threads():
    data = RenderedDataset(solid("die"), SETTINGS, seed=4)
    options = {"dataset": data, "batch_size": 3, "seed": 9, "augment": augmentation("strong")}
    plain = [batch.images for batch in islice(Stream(**options, threads=0).batches(), 6)]
    threaded = [batch.images for batch in islice(Stream(**options, threads=3).batches(2), 4)]
    assert all(torch.equal(a, b) for a, b in zip(plain[2:], threaded))
    other = Stream(**{**options, "seed": 10}, threads=0).batch(0)
    assert not torch.equal(plain[0], other.images)


def test_ranks_of_an_endless_stream_never_share_an_example():
    data = RenderedDataset(solid("die"), SETTINGS)
    streams = [Stream(dataset=data, batch_size=2, rank=r, world=3) for r in range(3)]
    assert sorted(i for stream in streams for step in range(4) for i in stream.indices(step)) == list(range(24))


def test_unreadable_images_are_left_out_and_counted():
    stream = Stream(dataset=listed(10, bad=(3, 4)), batch_size=10, augment=augmentation("mild"))
    batch = stream.batch(0)
    assert sorted(batch.indices) == [0, 1, 2, 5, 6, 7, 8, 9]
    assert len(batch.unreadable) == 2
    # The others are augmented as if nothing had happened.
    whole = Stream(dataset=listed(10), batch_size=10, augment=augmentation("mild")).batch(0)
    kept = [k for k, i in enumerate(whole.indices) if i not in (3, 4)]
    assert torch.equal(whole.images[kept], batch.images)


def test_one_pass_gives_every_example_in_order():
    data = RenderedDataset(solid("die"), SETTINGS)
    assert [shown(b) for b in one_pass(listed(10), 4)] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert [shown(b) for b in one_pass(listed(10), 4, rank=1, world=2)] == [[4, 5, 6, 7]]
    assert [shown(b) for b in one_pass(listed(10), 4, limit=5)] == [[0, 1, 2, 3], [4]]
    assert sum(map(len, one_pass(data, 4, limit=6))) == 6
    refused("never ends", one_pass, data, 4)
    with pytest.raises(TypeError, match="no length"):
        len(data)


def test_prefetching_keeps_order_and_hands_on_errors():
    gate = threading.Event()

    def make(k):
        if k == 0:
            gate.wait(10)
        else:
            gate.set()
        if k == 5:
            raise UnreadableExample("five.")
        return k

    results = prefetch(make, range(10), threads=2)
    assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
    with pytest.raises(UnreadableExample):
        next(results)


def test_different_numbers_of_true_rotations_are_padded_by_repeating():
    batch = listed(6).batch([0, 1, 2])
    assert batch.rotations.shape == (3, 3, 4)
    assert batch.counts.tolist() == [1, 2, 3]
    assert batch.labels == ("even", "odd", "even")
    assert torch.equal(batch.rotations[0], batch.rotations[0, :1].expand(3, 4))


def test_images_of_different_sizes_cannot_be_stacked(monkeypatch):
    monkeypatch.setattr(Listed, "image", lambda self, i: np.zeros((4 + i, 4, 3), np.uint8))
    refused("one size, got 4x4 and 5x4; open the data set with a size", listed(4).batch, [0, 1])


def test_indices_outside_are_refused():
    with pytest.raises(IndexError):
        listed(3)[3]
    assert listed(3)[-1].image[0, 0, 1] == 2
    assert [int(e.image[0, 0, 1]) for e in listed(3)] == [0, 1, 2]


def test_impossible_streams_are_refused():
    for wrong, rule in (
        ({"batch_size": 0}, "at least 1 example"),
        ({"rank": 2, "world": 2}, "rank must be in"),
        ({"dataset": listed(0)}, "empty"),
    ):
        refused(rule, Stream, **{"dataset": listed(3), "batch_size": 2, **wrong})


def test_damaged_image_files_are_named(tmp_path):
    bad = tmp_path / "x.png"
    bad.write_bytes(b"\x89PNG\r\n\x1a\n not really")
    with pytest.raises(UnreadableExample, match=r"^image x\.png cannot be read \(.*\); replace it"):
        decode_image(bad, "x.png")
    with pytest.raises(UnreadableExample, match="image y is missing"):
        decode_image(tmp_path / "y", "y")
