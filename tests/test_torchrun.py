"""`torchrun`: what two processes do together is what one does, and a training whose worker is killed goes on by
itself."""

import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from processes import torchrun
from render_small import contents
from scenes import bop_folder, pose_model

from aquamam.checkpoints.checkpoint import load_tensors, save_model
from aquamam.evaluation.bop import read_results

HERE = Path(__file__).parent


def test_two_processes_render_the_files_of_one(tmp_path, prints):
    arguments = ["die", "cube", "--size", 16, "--split", "train=9,test=4", "--workers", 1]
    prints("render", *arguments, "--out", tmp_path / "one")
    torchrun("-m", "aquamam", "render", *arguments, "--out", tmp_path / "two")
    assert contents(tmp_path / "two") == contents(tmp_path / "one")


def test_two_processes_predict_what_one_does_in_the_same_order(tmp_path, prints):
    model, noise = save_model(pose_model(), tmp_path / "model.safetensors"), np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for i in range(5):
        Image.fromarray(noise.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(tmp_path / "photos" / f"{i}.png")
    arguments = ["predict", tmp_path / "photos", "--model", model, "--samples", 32, "--device", "cpu", "--json"]
    alone = json.loads(prints(*arguments))
    together = json.loads(torchrun("-m", "aquamam", *arguments).stdout)
    assert [one["image"] for one in together] == [one["image"] for one in alone]
    for ours, theirs in zip(alone, together):
        assert theirs["quaternion_xyzw"] == pytest.approx(ours["quaternion_xyzw"], abs=1e-5)
        assert theirs["log_density"] == pytest.approx(ours["log_density"], abs=1e-4)
        assert theirs["share_within_15_deg"] == pytest.approx(ours["share_within_15_deg"], abs=0.05)


def test_two_processes_write_bops_file_together_and_tell_of_a_picture_that_one_could_not_read(tmp_path, prints):
    folder = bop_folder(tmp_path / "bop")
    save_model(pose_model(), tmp_path / "parts" / "obj_000007")
    arguments = ["predict", "--bop", folder, "--models", tmp_path / "parts", "--samples", 0, "--device", "cpu", "--out"]
    prints(*arguments, tmp_path / "one.csv")
    (folder / "test" / "000003" / "rgb" / "000002.png").write_bytes(b"no picture")
    told = torchrun("-m", "aquamam", *arguments, tmp_path / "two.csv", status=2)
    assert "000002.png" in told.stderr
    one, two = read_results(tmp_path / "one.csv"), read_results(tmp_path / "two.csv")
    assert [result.image for result in two] == [0, 1]
    for ours, theirs in zip(one, two):
        assert np.allclose(ours.pose.t, theirs.pose.t, atol=1e-3)


def test_a_killed_worker_is_started_again_and_ends_with_the_same_weights(tmp_path):
    """Saved at every step, so that no more than one is lost; dropout, so that noise counts, too."""
    script, often = HERE / "train_tiny.py", {"checkpoint_seconds": 1e-6}
    torchrun(script, tmp_path / "whole", 60, json.dumps(often))
    killed = torchrun("--max-restarts", 1, script, tmp_path / "killed", 60, json.dumps({**often, "killed_at": 40}))
    assert re.findall(r"from step (\d+)", killed.stderr)[:2] == ["0", "0"]
    assert set(re.findall(r"from step (\d+)", killed.stderr)[2:]) <= {"39", "40"}
    whole, again = (load_tensors(tmp_path / name / "state.safetensors")[0] for name in ("whole", "killed"))
    assert whole.keys() == again.keys()
    assert all(torch.equal(whole[name], again[name]) for name in whole)
