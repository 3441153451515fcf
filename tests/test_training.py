"""Training never loses work, is the same on one process and on two, and learns what is true; Muon, and
pyramids of heads."""

import json
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import train_tiny
from networks import tiny_config
from processes import torchrun
from refusals import refused
from synthetic import KnownMixture
from torch import nn
from train_tiny import MODEL, tiny_trainer

from aquamam.checkpoints.checkpoint import load, load_tensors
from aquamam.data.base import Batch, UnreadableExample
from aquamam.data.labels import draw_labels
from aquamam.errors import InputError
from aquamam.geometry.rotations import random_quat
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.network.model import AQuaMaM
from aquamam.posterior.calibration import Calibration, ConformalScores, Typicality
from aquamam.training.config import PAPER, TrainConfig
from aquamam.training.optim import Muon, orthogonalise
from aquamam.training.pyramid import add_pyramids, folded


def weights(folder) -> dict[str, torch.Tensor]:
    tensors, description = load_tensors(Path(folder) / "state.safetensors")
    assert description["progress"]["finished"]
    return tensors


def same(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


class Stop(Exception):
    pass


def test_a_stopped_run_resumes_bit_for_bit(tmp_path):
    """Killed at five moments, it ends with the same weights and the same log."""
    command = [sys.executable, train_tiny.__file__]
    whole = tiny_trainer(tmp_path / "whole", steps=250)
    whole.fit()
    kills, moments = 0, random.Random(0)
    for _ in range(40):
        with subprocess.Popen([*command, str(tmp_path / "parts"), "250"], stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            if kills < 5:
                time.sleep(moments.uniform(0.1, 0.8))
                process.kill()
                kills += 1
                continue
            assert process.stdout.read() == "done\n"
        break
    assert kills == 5
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))
    logs = [(tmp_path / name / "log.jsonl").read_text().splitlines() for name in ("whole", "parts")]
    told = [[(one["step"], one["log_likelihood"]) for one in map(json.loads, log)] for log in logs]
    assert told[0] == told[1]
    assert [step for step, _ in told[0]] == [*range(20, 250, 20), 250]
    assert not list((tmp_path / "parts").glob("*.tmp"))
    assert tiny_trainer(tmp_path / "parts", steps=250).fit().step == 250  # finished: nothing more to do


@pytest.mark.parametrize(
    ("precision", "error", "pose"), [("float32", 2e-5, False), ("bfloat16", 0.05, False), ("float32", 2e-5, True)]
)
def test_two_processes_equal_one(tmp_path, precision, error, pose):
    """The same global batch gives the same weights and validation figures on one process and on two under torchrun and
    gloo, also of a model that could tell poses, though these data tell none."""
    # a large eps: keys' biases have no gradient but rounding, which Adam would blow up to full steps
    model, changes = {"dropout": 0.0, "pose": pose}, {"eps": 1e-3, "precision": precision}
    torchrun(train_tiny.__file__, tmp_path / "two", 20, json.dumps(model | changes))
    tiny_trainer(tmp_path / "one", 20, replace(MODEL, **model), **changes).fit()
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name, tensor in one.items():
        if name.startswith(("model.", "average.")):
            assert torch.allclose(tensor, two[name], atol=error), name
    figures = [
        json.loads((tmp_path / n / "log.jsonl").read_text().splitlines()[-1])["log_likelihood"] for n in ("one", "two")
    ]
    assert figures[0] == pytest.approx(figures[1], abs=5 * error)


def test_it_learns_a_known_distribution(tmp_path):
    """The held-out log-likelihood approaches the true density's, and never passes it by more than chance."""
    model = tiny_config(bins=20, dim=32, heads=4, layers=2, hidden=64, image_size=8, stem=(8, 8))
    trainer = tiny_trainer(tmp_path, 350, model, batch_size=256, validate_every=350, lr=4e-3, averaging=0.1)
    valid = KnownMixture(split="valid", length=2000)
    trainer.fit()
    batch = valid.batch(range(2000))
    q = batch.rotations[:, 0]
    truth = torch.where(torch.arange(2000) % 2 == 0, valid.log_density(q, 0), valid.log_density(q, 1))
    with torch.no_grad():
        learnt = load(tmp_path)(batch.images).log_prob(q)
    gap = truth - learnt
    assert gap.mean() < 0.15
    assert gap.mean() > -4 * gap.std() / 2000**0.5


def test_labels_are_equivalent_rotations_with_weights_that_sum_to_one(generator):
    class Cans(KnownMixture):
        def symmetry(self, label):
            return SymmetryGroup.revolution((0, 1, 0), flip=True) if label == "can" else None

    q = random_quat((6, 1), generator=generator, dtype=torch.float64)
    shown = {"images": torch.zeros(6, 3, 4, 4, dtype=torch.uint8), "indices": tuple(range(6))}
    batch = Batch(**shown, rotations=q, counts=torch.ones(6, dtype=torch.int64), labels=("can", "box") * 3)
    drawn, weight = draw_labels(batch, Cans(), 5, seed=0, positions=np.arange(6))
    assert drawn.shape == (5, 6, 4)
    assert torch.allclose(weight.sum(0), torch.ones(6))
    group = SymmetryGroup.revolution((0, 1, 0), flip=True)
    assert group.distance(drawn[:, ::2], q[::2, 0]).max() < 1e-6
    assert torch.allclose(drawn[:, 1::2], q[1::2, 0].expand(5, 3, 4))
    assert len(drawn[:, 0].unique(dim=0)) == 5


def test_plateau_halves_the_rate_and_stops_at_the_second_idle_halving(tmp_path, monkeypatch):
    options = {"schedule": "plateau", "epoch_size": 32, "patience": 2, "smoothing": 0.0, "averaging": 0.0}
    trainer = tiny_trainer(tmp_path, 10_000, **options)
    values = iter([1.0, 2.0, 1.5, 1.5, 2.5, 2.0, 2.0, 2.0, 2.0, 9.0])
    monkeypatch.setattr(trainer, "validate", lambda: next(values))
    progress = trainer.fit()
    # improved at 2.0 and 2.5; halved after 1.5, 1.5, then twice in a row without an improvement
    assert (progress.step, progress.halvings, progress.best) == (9, 3, 2.5)


def test_a_run_from_another_model_keeps_its_temperatures_also_when_resumed(tmp_path):
    start = AQuaMaM(MODEL).eval()
    bound = {
        "scores": ConformalScores(samples=20, scores=((0.5,),)),
        "typicality": Typicality(mean=(0.0,), directions=(), rest=1.0),
    }
    start.calibration = Calibration(temperatures=(0.5, 2.0, 1.5), **bound)

    trainer = tiny_trainer(tmp_path, start_from=start)

    def stop(*_):
        trainer.save()
        raise Stop

    with pytest.raises(Stop):
        trainer.fit(stop)
    assert load(tmp_path).calibration == replace(start.calibration, scores=None, typicality=None)  # of old weights
    tiny_trainer(tmp_path).fit()
    assert load(tmp_path).calibration.temperatures[:3] == (0.5, 2.0, 1.5)


def test_a_loss_that_is_not_finite_stops_with_the_last_checkpoint_kept(tmp_path, monkeypatch):
    trainer = tiny_trainer(tmp_path, 40)

    def poison(*_):  # after the validation at step 20, whose state is kept
        monkeypatch.setattr(type(trainer.model), "loss", lambda self, *a, **k: self.start.sum() * torch.nan)

    with pytest.raises(InputError, match="not finite at step 20"):
        trainer.fit(poison)
    assert load(tmp_path) is not None


def test_a_full_disk_stops_with_a_sentence_and_the_run_goes_on_later(tmp_path, monkeypatch):
    def stop(progress, _):
        if progress.step == 20:
            full = lambda _: (_ for _ in ()).throw(OSError(28, "No space left on device"))  # noqa: E731
            monkeypatch.setattr("os.fsync", full)

    with pytest.raises(InputError, match=r"No space left on device.*run the same command again"):
        tiny_trainer(tmp_path / "parts", 40).fit(stop)
    monkeypatch.undo()
    tiny_trainer(tmp_path / "parts", 40).fit()
    tiny_trainer(tmp_path / "whole", 40).fit()
    assert same(weights(tmp_path / "whole"), weights(tmp_path / "parts"))


def test_unreadable_images_are_skipped_counted_and_named_and_many_stop_the_run(tmp_path):
    class Holes(KnownMixture):
        every = 200

        def image(self, i):
            if i % self.every == 7:
                raise UnreadableExample(f"image {i} is damaged.")
            return super().image(i)

    trainer = tiny_trainer(tmp_path / "few", 40)
    trainer.stream = replace(trainer.stream, dataset=Holes())
    progress = trainer.fit()
    assert progress.skipped == 7
    assert "image 1207" in progress.skipped_names[-1]
    trainer = tiny_trainer(tmp_path / "many", 100)
    Holes.every = 20
    trainer.stream = replace(trainer.stream, dataset=Holes())
    with pytest.raises(InputError, match="cannot be read"):
        trainer.fit()


def test_data_model_and_folder_must_fit(tmp_path):
    refused("image_size=8", tiny_trainer, tmp_path, model=replace(MODEL, image_size=16))
    refused("reads categories", tiny_trainer, tmp_path, model=replace(MODEL, embedding="category"))
    tiny_trainer(tmp_path, 20).fit()
    refused(r"another run: train\.lr", tiny_trainer(tmp_path, 20, lr=1e-3).fit)


def test_schedules_start_low_end_at_zero_and_labels_end_exact_and_the_papers_is_to_the_letter():
    paper = ("adam", 1e-4, (0.9, 0.999), 1e-9, 128, 5)
    assert (PAPER.optimizer, PAPER.lr, PAPER.betas, PAPER.eps, PAPER.batch_size, PAPER.patience) == paper
    config = TrainConfig()
    assert config.learning_rate(0.0) < 0.01 * config.lr
    assert config.learning_rate(config.warmup) == pytest.approx(config.lr)
    assert config.learning_rate(1.0) == pytest.approx(0, abs=1e-9)
    assert config.label_width(0.0) == 12
    assert config.label_width(0.6) == 0


@pytest.mark.parametrize("shape", [(24, 24), (16, 80), (80, 16)])
@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize(("precision", "error"), [(torch.float32, 0.05), (torch.bfloat16, 0.1)])
def test_singular_values_become_alike_and_directions_stay(shape, size, precision, error, generator):
    left, _ = torch.linalg.qr(torch.randn(shape[0], 16, generator=generator))
    right, _ = torch.linalg.qr(torch.randn(shape[1], 16, generator=generator))
    spectrum = torch.logspace(0, -1.5, 16)
    update = orthogonalise(size * (left * spectrum) @ right.T, precision)
    values = torch.linalg.svdvals(update)[:16]
    assert values.min() > 0.6
    assert values.max() < 1.3
    inside = left.T @ update @ right  # in the gradient's own directions it is diagonal
    assert (inside - torch.diag(inside.diagonal())).abs().max() < error
    assert inside.diagonal().min() > 0.6


def test_stacked_matrices_are_stepped_one_by_one(generator):
    parts = [nn.Parameter(torch.randn(16, 16, generator=generator)) for _ in range(3)]
    whole = nn.Parameter(torch.cat([p.detach() for p in parts]))
    whole.stacked = 3
    optimizer = Muon([{"params": [whole, *parts]}], lr=0.1, weight_decay=0.1)
    for _ in range(3):
        for part in parts:
            part.grad = torch.randn(16, 16, generator=generator)
        whole.grad = torch.cat([p.grad for p in parts])
        optimizer.step()
    assert torch.allclose(whole, torch.cat(parts), atol=1e-5)


@pytest.mark.parametrize("fresh", [True, False])
def test_folding_changes_no_answer(fresh):
    torch.manual_seed(0)
    model = AQuaMaM(MODEL).eval()
    images = torch.rand((2, 3, MODEL.image_size, MODEL.image_size), generator=torch.Generator().manual_seed(1))
    before = model.posterior(images).first_log_probs().detach()
    add_pyramids(model, fresh=fresh)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if fresh and name.startswith("first_head.parametrizations.weight") and parameter.numel() == 1:
                parameter.fill_(0.3)
    after = model.posterior(images).first_log_probs().detach()
    assert torch.allclose(before, after, atol=1e-6) != fresh  # one that has learnt goes on from where it is
    plain = folded(model)
    assert set(plain.state_dict()) == set(AQuaMaM(MODEL).state_dict())
    assert torch.allclose(plain.posterior(images).first_log_probs(), after, atol=1e-6)
    assert torch.equal(model.posterior(images).first_log_probs(), after)  # the model itself goes on learning


def test_batch_norms_keep_their_statistics_for_the_end_of_a_schedule(tmp_path):
    def statistics(folder, **changes) -> list[torch.Tensor]:
        trainer = tiny_trainer(folder, 8, **changes)
        seen = []
        step = trainer._step

        def watched(batch: Batch) -> torch.Tensor:
            loss = step(batch)
            seen.append(trainer.model.state_dict()["embed.stages.1.running_mean"].clone())
            return loss

        trainer._step = watched
        trainer.fit()
        return seen

    frozen = statistics(tmp_path / "frozen", frozen_norms=0.5)
    assert not torch.equal(frozen[0], frozen[3])
    assert all(torch.equal(one, frozen[3]) for one in frozen[4:])
    free = statistics(tmp_path / "free", frozen_norms=1.0)
    assert torch.equal(free[3], frozen[3])
    assert not torch.equal(free[4], free[3])
