"""What is fitted after training: regions hold the truth as often as they promise, also when the model behind them is
wrong about itself; temperatures raise the likelihood and change no prediction; typicality tells images unlike those of
training."""

import math

import numpy as np
import pytest
import torch
from binghams import bingham_posterior, cylinder, four_fives, turns
from networks import tiny_model
from scipy.stats import kstest
from synthetic import KnownMixture
from tables import table_posterior
from torch import nn
from train_tiny import MODEL

from aquamam.baselines.bingham import BinghamMixture
from aquamam.checkpoints.checkpoint import load, save_model
from aquamam.data import PhotoDataset
from aquamam.data.renders import RenderedDataset
from aquamam.geometry.cells import Cells
from aquamam.geometry.rotations import random_quat, rotvec_to_quat
from aquamam.network.model import AQuaMaM, RotationModel
from aquamam.posterior.calibration import Calibration, ConformalScores
from aquamam.posterior.distribution import Calibrated, Rotated
from aquamam.rendering.render import RenderSettings
from aquamam.rendering.solids import solid
from aquamam.training.calibrate import calibrate, find_typicality, temper

KAPPA = 4.0


class Knower(RotationModel):
    """Knows the modes of `KnownMixture`, but thinks them `sure` times as sharp as they are."""

    def __init__(self, data: KnownMixture, sure: float):
        super().__init__()
        modes = [*data.modes[0].as_quat(), *data.modes[1].as_quat()]
        self.modes = nn.Parameter(torch.tensor(np.array(modes)))
        self.z = -2 * KAPPA * sure

    def posterior(self, images):
        one = (images[:, 0, 0, 0] > images[:, 1, 0, 0])[:, None]
        weight = torch.where(one, torch.tensor([1.0, 0, 0, 0]), torch.tensor([0.0, 1, 1, 1]) / 3).double().log()
        batch = len(images)
        still = torch.tensor([0.0, 0, 0, 1], dtype=torch.float64).expand(batch, 4, 4)
        z = torch.tensor([self.z, self.z, self.z, 0], dtype=torch.float64).expand(batch, 4, 4)
        return BinghamMixture(log_weight=weight, left=self.modes.expand(batch, 4, 4), right=still, z=z)


def held(model: nn.Module, data: KnownMixture, level: float, **options) -> torch.Tensor:
    """Which truths of a data set lie in their regions."""
    batch = data.batch(range(len(data)))
    with torch.no_grad():
        found = model(batch.images).region(level, generator=torch.Generator().manual_seed(7), **options)
    return found.contains(batch.rotations[:, 0])


@pytest.mark.parametrize("sure", [0.2, 1.0, 6.0])
def test_calibrated_regions_hold_the_truth_as_promised_however_wrong_the_model_is(sure):
    calibration, test = (KnownMixture(KAPPA, split=split, length=500) for split in ("calibration", "test"))
    model = Knower(calibration, sure)
    calibrate(model, calibration, samples=100)
    for level in (0.5, 0.9):
        inside = held(model, test, level)
        error = math.sqrt(level * (1 - level) * (1 / 500 + 1 / 500))  # of the test, and of the calibration
        assert abs(float(inside.double().mean()) - level) < 3 * error
    trusting = held(model, test, 0.9, calibration=False).double().mean()
    assert {0.2: trusting > 0.97, 1.0: abs(trusting - 0.9) < 0.045, 6.0: trusting < 0.6}[sure]


def test_groups_are_calibrated_each_for_itself():
    class HalfRight(Knower):
        """Right about images with one mode, far too sure about those with three."""

        def posterior(self, images):
            posterior = super().posterior(images)
            one = (images[:, 0, 0, 0] > images[:, 1, 0, 0])[:, None, None]
            z = torch.where(one, posterior.z, 10 * posterior.z)
            return BinghamMixture(log_weight=posterior.log_weight, left=posterior.left, right=posterior.right, z=z)

    calibration, test = (KnownMixture(KAPPA, split=split, length=600) for split in ("calibration", "test"))
    model = HalfRight(calibration, 1.0)
    for groups, even in ((1, False), (2, True)):
        calibrate(model, calibration, samples=100, groups=groups)
        inside = held(model, test, 0.8).double()
        shares = [float(inside[k::2].mean()) for k in range(2)]
        assert (max(abs(share - 0.8) for share in shares) < 0.09) == even


def test_every_rotation_is_in_the_region_when_too_few_were_held_out():
    data = KnownMixture(KAPPA, split="few", length=8)
    model = Knower(data, 1.0)
    kept = calibrate(model, data, levels=(0.5, 0.95), samples=50)
    assert kept["levels"]["0.95"] == [1.0]
    assert kept["levels"]["0.5"][0] < 1
    everything = model(data.batch([0]).images).region(0.95)
    assert bool(everything.contains(random_quat((100, 1))).all())
    assert float(everything.share.value) == pytest.approx(1, abs=5 * float(everything.share.standard_error))
    assert bool(everything.abstain)


def test_ties_of_cells_do_not_spoil_coverage(generator):
    cells = Cells("hemisphere", 6)
    posterior = table_posterior(cells, batch=1, scale=1.0).expand((600,))
    truth = posterior.sample((), generator=generator)
    for level in (0.3, 0.9):
        inside = posterior.region(level, samples=60, generator=generator).contains(truth)
        assert abs(float(inside.double().mean()) - level) < 3.5 * math.sqrt(level * (1 - level) / 600)


def test_the_share_of_a_ball_is_its_volume(generator):
    posterior = bingham_posterior(turns(1), [8.0])
    found = posterior.region(0.9, samples=2000, generator=generator)
    # an isotropic density is a ball about its mode; its radius is where the density passes the threshold
    angle = torch.linspace(0, math.pi, 200_001, dtype=torch.float64)
    spun = rotvec_to_quat(angle[:, None] * torch.tensor([0.6, 0, 0.8], dtype=torch.float64))
    radius = float(angle[posterior.log_prob(spun[:, None])[:, 0] >= found.threshold].max())
    volume = (radius - math.sin(radius)) / math.pi
    share = found.share
    assert float(share.value) == pytest.approx(volume, abs=4 * float(share.standard_error))
    assert float(share.standard_error) < 0.1 * volume
    assert not bool(found.abstain)
    (component,) = found.components[0]
    assert component.radius_deg == pytest.approx(math.degrees(radius), rel=0.15)
    assert component.share == pytest.approx(0.9, abs=0.01)


def test_components_are_the_separate_answers(generator):
    four = four_fives().region(0.9, generator=generator).components[0]
    assert len(four) == 4
    assert sum(part.share for part in four) == pytest.approx(0.9, abs=0.01)
    assert max(part.radius_deg for part in four) < 12
    curves = cylinder().region(0.9, samples=1000, generator=generator).components[0]
    assert [part.kind for part in curves] == ["curve", "curve"]


def test_a_flat_posterior_abstains(generator):
    flat = table_posterior(Cells("atlas", 6), batch=2, scale=0.0)
    found = flat.region(0.9, generator=generator)
    assert found.abstain.tolist() == [True, True]
    assert found.share.value.tolist() == pytest.approx([0.9, 0.9], abs=0.08)
    told = found.to_dicts()
    assert [one["abstain"] for one in told] == [True, True]
    assert told[0]["calibrated"] is False


def test_the_scores_live_in_the_checkpoint(tmp_path):
    model = tiny_model()
    data = RenderedDataset(solid("tet"), RenderSettings(size=16), split="calibration", length=24)
    kept = calibrate(model, data, samples=30, batch_size=8)
    assert kept == calibrate(model, data, samples=30, batch_size=8)
    assert kept["images"] == len(kept["scores"][0]) == 24
    save_model(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    images = data.batch([0, 1]).images
    one, other = (m(images).region(0.5, generator=torch.Generator().manual_seed(0)) for m in (model, again))
    assert one.calibrated
    assert torch.equal(one.threshold, other.threshold)
    assert torch.equal(one.mass, torch.full((2,), kept["levels"]["0.5"][0], dtype=torch.float64))


def test_a_rotation_of_the_camera_keeps_the_calibration():
    scores = ConformalScores(samples=20, scores=((0.3,) * 30,))
    posterior = Calibrated(table_posterior(Cells("atlas", 12), batch=2), Calibration(scores=scores))
    rotated = Rotated(posterior, random_quat((2,), generator=torch.Generator().manual_seed(0)))
    for region in (posterior.region(0.5, samples=20), rotated.region(0.5, samples=20)):
        assert region.calibrated
        assert region.mass.tolist() == pytest.approx([0.3, 0.3])


class Redrawn(KnownMixture):
    """Rotations drawn from a model instead of the truth."""

    def __init__(self, model: AQuaMaM, length: int):
        super().__init__(split="valid", length=length)
        images = KnownMixture(length=length).batch(range(length)).images
        with torch.no_grad():
            self.drawn = model(images).sample(generator=torch.Generator().manual_seed(1)).double().numpy()

    def rotations(self, i: int) -> np.ndarray:
        return self.drawn[i, None]


def test_temperatures_that_were_put_in_are_taken_out(tmp_path):
    """Labels drawn from the model itself: whatever its temperatures are changed to, tempering finds the way back."""
    torch.manual_seed(0)
    model = AQuaMaM(MODEL).eval()
    with torch.no_grad():
        for head in (model.head, model.first_head):
            head.weight.mul_(12)
    data = Redrawn(model, length=1500)
    images = data.batch(range(50)).images
    with torch.no_grad():
        predictions = model(images).mode
    model.calibration = Calibration(temperatures=(0.5, 1.6, 0.6))
    temper(model, data, 1500)
    assert model.calibration.temperatures[:3] == pytest.approx((1, 1, 1), abs=0.12)
    assert temper(model, data, 1500) == pytest.approx((1, 1, 1), abs=1e-3)
    save_model(model, tmp_path / "model.safetensors")
    again = load(tmp_path / "model.safetensors")
    assert again.calibration == model.calibration
    with torch.no_grad():
        assert torch.equal(again(images).mode, predictions)


def test_p_values_are_uniform_for_images_like_the_held_out_ones_and_small_for_others():
    model = tiny_model(bins=16, stem=(8, 16), hidden=32)
    find_typicality(model, PhotoDataset(solid("die"), 16, split="calibration", length=600))
    model.calibration = Calibration.from_dict(model.calibration.to_dict())  # as it is after a journey through a file
    images = PhotoDataset(solid("die"), 16, split="test", length=400).batch(range(400)).images
    with torch.no_grad():
        p = model(images).typicality
        odd = model((torch.arange(16) % 2 * 255).byte().expand(4, 3, 16, 16))
    assert p is not None
    assert kstest(p.numpy(), "uniform").statistic < 0.1  # 400 images against 300: two standard errors are 0.1
    assert odd.typicality.max() < 0.02
    assert odd.region(0.9, samples=40, calibration=False).abstain.all()
