"""Data sets on disk: however many processes write them, killed or out of disk, they end as the same bytes."""

import errno
import json
import os
import pickle
import random
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
import render_small
from PIL import Image
from refusals import refused
from render_small import SETTINGS, contents, ingredients

from aquamam import files
from aquamam.data.base import UnreadableExample
from aquamam.data.disk import layout
from aquamam.data.disk.layout import Manifest
from aquamam.data.disk.store import StoredDataset
from aquamam.data.disk.writing import write_dataset
from aquamam.data.random import haar, uniforms
from aquamam.data.renders import RenderedDataset
from aquamam.errors import InputError
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid


@pytest.fixture(params=["raw", "png"])
def encoding(request) -> str:
    return request.param


@pytest.fixture
def stored(tmp_path, encoding) -> Path:
    write_dataset(tmp_path / "set", *ingredients(encoding))
    return tmp_path / "set"


def test_number_of_processes_and_machines_does_not_change_a_byte(tmp_path, stored, encoding):
    write_dataset(tmp_path / "two", *ingredients(encoding), workers=2)
    for part in [(2, 3), (0, 3), (1, 3)]:
        write_dataset(tmp_path / "parts", *ingredients(encoding), part=part)
    assert contents(tmp_path / "two") == contents(stored)
    assert contents(tmp_path / "parts") == contents(stored)


def test_stored_and_on_the_fly_examples_are_the_same(stored):
    there = StoredDataset(stored, "test")
    live = RenderedDataset(solid("die"), SETTINGS, seed=3, split="test")
    for i in range(len(there)):
        assert np.array_equal(there[i].image, live[i].image)
        assert np.array_equal(there[i].rotations, live[i].rotations)


def test_batch_is_the_examples_stacked_in_the_size_asked_for_after_pickling_too(stored):
    data = StoredDataset(stored, "train")
    indices = [29, 0, 8, 8, 15]
    batch = data.batch(indices)
    assert batch.images.is_contiguous()
    assert batch.indices == tuple(indices)
    assert batch.labels == ("die",) * 5
    for k, i in enumerate(indices):
        assert np.array_equal(batch.images[k].permute(1, 2, 0).numpy(), data[i].image)
        assert np.array_equal(batch.rotations[k].numpy(), data[i].rotations)
    assert data.batch([]).images.shape == (0, 3, 12, 12)
    data = StoredDataset(stored, "train", size=6)
    assert data.image_size == (6, 6)
    assert data.batch([0, 9]).images.shape == (2, 3, 6, 6)
    assert np.array_equal(pickle.loads(pickle.dumps(data))[1].image, data[1].image)


def test_tar_shards_are_what_webdataset_reads(tmp_path):
    write_dataset(tmp_path, *ingredients("png"))
    data = StoredDataset(tmp_path, "train")
    with tarfile.open(tmp_path / "train" / "000001.tar") as archive:
        names = archive.getnames()
        assert names[:2] == ["000000007.png", "000000007.json"]
        about = json.load(archive.extractfile(names[1]))
        assert np.array_equal(np.asarray(Image.open(archive.extractfile(names[0]))), data[7].image)
    assert about["object"] == "die"
    assert np.array_equal([about["rotation_xyzw"]], data[7].rotations)


def test_random_backgrounds_belong_to_the_example():
    live = RenderedDataset(solid("die"), RenderSettings(size=12, background="random"), seed=1)
    corner = live.batch(range(20)).images[:, :, 0, 0]
    assert len(set(map(tuple, corner.tolist()))) == 20
    assert np.array_equal(live.batch([7]).images[0], live.batch([3, 7]).images[1])


def test_killed_at_random_moments_it_resumes_to_the_same_bytes(tmp_path):
    command = [sys.executable, render_small.__file__]
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    subprocess.run([*command, whole], check=True, capture_output=True)
    shards = len(list(whole.rglob("*.images.npy")))
    chance = random.Random(0)
    for k in range(3):
        process = subprocess.Popen([*command, broken], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        goal = (k + chance.random()) / 3 * shards
        while process.poll() is None and len(list(broken.rglob("*.images.npy"))) <= goal:
            time.sleep(0.002)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run([*command, broken], check=True, capture_output=True)
    assert contents(broken) == contents(whole)


def test_a_full_disk_is_told_in_one_sentence_and_leaves_whole_shards(tmp_path, monkeypatch, encoding):
    calls = []
    replace = os.replace

    def full(source, target):
        calls.append(target)
        if len(calls) == 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match=r"^the disk of .* is full after \d+ of 35 images, all of them whole; .*\.$"):
        write_dataset(tmp_path / "set", *ingredients(encoding))
    assert not list((tmp_path / "set").rglob(".*.tmp"))
    refused("run the same `aquamam render` again", StoredDataset, tmp_path / "set", "train")
    write_dataset(tmp_path / "set", *ingredients(encoding))
    write_dataset(tmp_path / "fresh", *ingredients(encoding))
    assert contents(tmp_path / "set") == contents(tmp_path / "fresh")


def test_failures_reach_the_caller(tmp_path):
    spec, manifest = ingredients()
    (tmp_path / "train").write_text("a file where the folder should be")
    files.write_json(tmp_path / layout.MANIFEST, asdict(manifest))
    with pytest.raises(FileExistsError):
        write_dataset(tmp_path, spec, manifest, workers=2)
    refused("at least 1 worker", write_dataset, tmp_path, *ingredients(), workers=0)
    refused("0 <= i < n", write_dataset, tmp_path, *ingredients(), part=(2, 2))


def test_another_data_sets_folder_is_refused_untouched(tmp_path, stored, encoding):
    refused("has the splits train, test, not 'valid'", StoredDataset, stored, "valid")
    before = contents(stored)
    with pytest.raises(InputError, match=r"holds another data set \(seed is 3, this run asks for 4\)"):
        write_dataset(stored, *ingredients(encoding, seed=4))
    with pytest.raises(InputError, match=r"holds another data set \(splits.train is 30"):
        write_dataset(stored, *ingredients(encoding, train=31, test=5))
    assert contents(stored) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("...")
    refused(r"is not empty \(it holds thesis.tex\)", write_dataset, tmp_path / "mine", *ingredients(encoding))


def test_damaged_files_are_named_and_can_be_skipped(stored, encoding):
    path = stored / "train" / ("000001.images.npy" if encoding == "raw" else "000001.tar")
    path.write_bytes(path.read_bytes()[:1500])
    data = StoredDataset(stored, "train")
    with pytest.raises(UnreadableExample, match=r"damaged|cannot be read"):
        data[13]
    with pytest.raises(UnreadableExample):
        data.batch([0, 13])
    batch = data.batch([0, 13, 20], unreadable="skip")
    assert batch.indices == (0, 20)
    assert len(batch.unreadable) == 1
    assert len(batch) == len(batch.images) == len(batch.rotations) == 2


@pytest.mark.parametrize("text", ["", "[]", '{"format": "other"}', '{"format": "aquamam-dataset", "version": 1}'])
def test_foreign_or_broken_description_is_one_sentence(tmp_path, text):
    (tmp_path / layout.MANIFEST).write_text(text)
    refused(r"dataset\.json .*; restore it", Manifest.read, tmp_path)


def test_draws_depend_on_position_alone():
    numbers = np.arange(1000)
    q = haar(5, "train", numbers)
    assert np.array_equal(q[[3, 999]], haar(5, "train", np.array([3, 999])))
    assert not np.array_equal(q, haar(6, "train", numbers))
    assert not np.array_equal(q, haar(5, "test", numbers))
    assert np.array_equal(uniforms(0, "s", numbers, 5)[:, 2:], uniforms(0, "s", numbers, 3, first=2))
