"""An image looked at in several turns: an exact mixture that turning the image leaves as it is."""

import math

import pytest
import torch
from PIL import Image

import aquamam
from aquamam.cli.main import main
from aquamam.data import RenderedDataset
from aquamam.errors import InputError
from aquamam.evaluation.evaluate import evaluate
from aquamam.network.model import AQuaMaM, ModelConfig
from aquamam.training.presets import model_config
from aquamam.rendering.render import RenderSettings, render
from aquamam.geometry.rotations import matrix_to_quat, multiply, random_quat
from aquamam.rendering.solids import DIE_FACES, solid
from aquamam.training.turns import temper_turned, turn_image, turned

QUARTER = torch.tensor([0.0, 0, math.sin(math.pi / 4), math.cos(math.pi / 4)])
SMALL = ModelConfig(
    bins=20, dim=16, heads=2, layers=1, hidden=16, image_size=16, patch_size=8, sharpness=(9.0, 6.0, 5.0)
)


@pytest.fixture
def model() -> AQuaMaM:
    torch.manual_seed(0)
    return AQuaMaM(SMALL).eval()


def images(count: int) -> torch.Tensor:
    return torch.rand((count, 3, 16, 16), generator=torch.Generator().manual_seed(1))


def test_the_mixture_is_that_of_its_parts(model, generator):
    q = random_quat((50, 3), generator=generator)
    with torch.no_grad():
        upright, over = model(images(3)), model(torch.rot90(images(3), 2, dims=(-2, -1)))
        both = torch.stack([upright.log_prob(q), over.log_prob(multiply(multiply(QUARTER, QUARTER), q))])
        torch.testing.assert_close(turned(model, 2)(images(3)).log_prob(q), both.logsumexp(0) - math.log(2))


def test_a_turned_image_gives_the_turned_posterior(model, generator):
    """What no single network does: the answer does not depend on how the camera was rolled, by quarters."""
    q = random_quat((200, 2), generator=generator)
    with torch.no_grad():
        here = turned(model)(images(2))
        there = turned(model)(torch.rot90(images(2), 1, dims=(-2, -1)))
        torch.testing.assert_close(there.log_prob(multiply(QUARTER, q)), here.log_prob(q), rtol=1e-4, atol=1e-4)
        best = here.log_prob(here.mode)
        torch.testing.assert_close(best, there.log_prob(there.mode), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("turns", [2, 6])
def test_total_mass_is_one_and_samples_follow_the_density(model, turns, generator):
    """Half uniform draws and half samples bound the weight; the mean weight is the mass."""
    with torch.no_grad():
        posterior = turned(model, turns)(images(1))
        drawn = posterior.sample((20_000,), generator=generator)[:, 0]
        q = torch.cat([drawn, random_quat((20_000,), generator=generator)])
        p, uniform = posterior.log_prob(q[:, None])[:, 0].double().exp(), math.pi**-2
        share = p / (p + uniform)  # one half on average over the equal mixture, if the density integrates to one
        assert float(share.mean()) == pytest.approx(0.5, abs=4 * float(share.std()) / math.sqrt(len(q)))
        cut = p[:20_000].median()
        inside = (p > cut).double() * p / (p + uniform) * 2
        assert float(inside.mean()) == pytest.approx(0.5, abs=0.02)  # the mass where half of the samples lie


def test_pictures_are_turned_like_the_camera():
    """Interpolated turns go the same way as exact ones, and show what a rolled camera sees."""
    q = torch.tensor([0.2, -0.5, 0.3, 0.7], dtype=torch.float64)
    q = q / q.norm()
    for k in (1, 2, 3, 5, 6):
        half = math.pi * k / 8
        roll = torch.tensor([0.0, 0, math.sin(half), math.cos(half)], dtype=torch.float64)
        settings = RenderSettings(size=64, light=(0.0, 0.0, 1.0))
        upright, rolled = (
            torch.from_numpy(render(solid("die").mesh, r.numpy(), settings)).permute(2, 0, 1)[None] / 255
            for r in (q, multiply(roll, q))
        )
        turned_back = (turn_image(upright, k, 8) - rolled).abs().mean()
        assert turned_back < 0.03
        assert (upright - rolled).abs().mean() > 3 * turned_back


def test_single_samples_come_from_all_parts(model, generator):
    """One draw of each of 400 copies of an image is distributed like 400 draws of one."""
    with torch.no_grad():
        posterior = turned(model)(images(1))
        many = posterior.log_prob(posterior.sample((4000,), generator=generator)).double()
        copies = turned(model)(images(1).expand(400, -1, -1, -1))
        single = copies.log_prob(copies.sample(generator=generator)).double()
    assert single.shape == (400,)
    assert float(single.mean()) == pytest.approx(float(many.mean()), abs=4 * float(many.std()) / 20)


def test_a_view_with_quarter_turns_has_equal_shares():
    """The straight five: quarter turns about the line of sight leave the picture as it is."""
    model = aquamam.load("die")
    settings = RenderSettings(size=64, light=(0.0, 0.0, 1.0))
    normal, right, up = (torch.tensor(v, dtype=torch.float64) for v in DIE_FACES[5])
    straight = matrix_to_quat(torch.stack([right, up, normal]))
    image = torch.from_numpy(render(solid("die").mesh, straight.numpy(), settings)).permute(2, 0, 1)[None]
    with torch.no_grad():
        drawn = turned(model)(image).sample((1000,), generator=torch.Generator().manual_seed(0))[:, 0].double()
    four = [straight]
    for _ in range(3):
        four.append(multiply(QUARTER.double(), four[-1]))
    near = (drawn @ torch.stack(four).T).abs() > math.cos(math.radians(7.5))
    assert near.double().mean(0).tolist() == pytest.approx([0.25] * 4, abs=0.05)


def test_tempering_helps_the_mixture_and_is_remembered(tmp_path):
    model = aquamam.load("die")
    data = RenderedDataset(solid("die"), RenderSettings(size=64), seed=7, split="temper", length=60)
    batch = data.batch(range(60))
    truth = batch.rotations[:, 0]
    with torch.no_grad():
        before = turned(model, factor=1.0)(batch.images).log_prob(truth).mean()
        factor = temper_turned(model, data, 60)
        assert temper_turned(aquamam.load("die"), data, 60, aim="coverage") >= factor
        after = turned(model)(batch.images).log_prob(truth).mean()
        alone = model(batch.images).log_prob(truth).mean()
    assert after > before
    assert after > alone
    aquamam.save_model(model, tmp_path / "die.safetensors")
    again = turned(aquamam.load(tmp_path / "die.safetensors"))
    assert again.model.config.sharpness == pytest.approx([factor * s for s in model.config.sharpness])
    with pytest.raises(InputError, match="save the model inside"):
        aquamam.save_model(again, tmp_path / "turned.safetensors")


def test_judging_leaves_the_model_as_it_was():
    """Not in training mode, in which batch norms would follow the images."""
    model = aquamam.load("die")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    data = RenderedDataset(solid("die"), RenderSettings(size=64), seed=7, split="check", length=8)
    evaluate(turned(model), data, samples=4, quiet=True)
    assert not any(module.training for module in model.modules())
    with torch.no_grad():
        model(data.batch(range(8)).images)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_bad_turns_are_told_and_the_command_line_takes_them(model, tmp_path, capsys):
    with pytest.raises(InputError, match="2 to 64 turns"):
        turned(model, 1)
    with pytest.raises(InputError, match="read images"):
        turned(AQuaMaM(model_config("toy").__class__(embedding="category", bins=8, dim=8, heads=2, layers=1, tokens=2)))
    picture = tmp_path / "die.png"
    Image.fromarray(render(solid("die").mesh, [0.5, 0.5, 0.5, 0.5], RenderSettings(size=64))).save(picture)
    assert main(["predict", str(picture), "--turns", "4", "--samples", "0", "--csv"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
