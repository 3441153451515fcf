"""The network: counts, caches, masks, inputs."""

import copy

import numpy as np
import pytest
import torch
from PIL import Image
from registry import inputs, tiny

import aquamam
from aquamam.geometry.rotations import geodesic_angle, random_quat
from aquamam.network.model import AQuaMaM
from aquamam.posterior.calibration import Calibration
from benchmarks.plain import PlainAQuaMaM


@pytest.fixture(params=["stem", "patches", "category"])
def model(request) -> AQuaMaM:
    model = tiny(request.param)
    model.calibration = Calibration(temperatures=(0.8, 1.25, 0.9))
    return model


@pytest.mark.parametrize("layers", [1, 3])
@pytest.mark.parametrize("toy", [False, True])
def test_log_prob_and_decoding_equal_the_plain_forward_pass_of_the_original(layers, toy, tmp_path, generator):
    """Shared prefix, pruned last layer, cached decoding: the same numbers as one padded sequence a rotation."""
    torch.manual_seed(layers)
    reads = {"categories": 5, "tokens": 9} if toy else {"image": 16, "patch": 8}
    plain = PlainAQuaMaM(40, 24, 8, layers, **reads).eval()
    torch.save({"module." * toy + k: v for k, v in plain.state_dict().items()}, tmp_path / "original.pt")
    images = torch.arange(5) if toy else torch.rand((5, 3, 16, 16), generator=generator)
    q = random_quat((7, 5), generator=generator)
    with torch.no_grad():
        posterior = aquamam.import_original(tmp_path / "original.pt")(images)
        expected = torch.stack([plain.log_prob(images, row) for row in q])
        assert torch.allclose(posterior.log_prob(q).double(), expected, atol=1e-4)
        assert geodesic_angle(posterior.mode, plain.predict(images)).max() < 1e-4


def test_pil_images_lists_and_tensors_are_read_alike():
    model = tiny("stem")
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    q = torch.tensor([0.5, 0.5, 0.5, 0.5])
    with torch.no_grad():
        expected = model(tensor[None]).log_prob(q)
        picture = Image.fromarray(pixels)
        for images in (tensor, tensor[None].float() / 255, picture, [picture], [tensor]):
            assert torch.allclose(model(images).log_prob(q), expected, atol=1e-5)
        assert model([]).batch_shape == (0,)
        assert model(Image.fromarray(np.zeros((40, 50), np.uint8))).batch_shape == (1,)


@pytest.mark.parametrize("model", ["stem", "category"], indirect=True)  # those that see bins only
@pytest.mark.parametrize("temperature", [1.0, 0.025])
def test_sentences_that_share_passes_have_their_own_probabilities(model, temperature):
    """Where all prefixes differ, and where most are equal."""
    model.calibration = Calibration(temperatures=(temperature,) * 3)
    with torch.no_grad():
        posterior = model(inputs(model, 3)).unwrapped
        drawn = posterior.sentences(300, generator=torch.Generator().manual_seed(2))
        q = model.cells.chart.join(drawn.chart, model.cells.representative(drawn.cell))
        log_p = posterior.log_prob(q) - posterior._cell(q)[1]
        torch.testing.assert_close(drawn.log_prob.double(), log_p, atol=1e-4, rtol=0)
        torch.testing.assert_close(posterior.log_prob(posterior.sample((0,))), torch.zeros(0, 3))


def by_optimiser(weight):
    weight.grad = torch.ones_like(weight)
    torch.optim.SGD([weight], lr=0.1).step()


def by_data(weight):
    weight.data[len(weight) // 2 :] += 0.1


@pytest.mark.parametrize("change", [by_optimiser, by_data])
@pytest.mark.parametrize(
    "part", ["blocks.0.qkv.weight", "blocks.1.linear2.weight", "blocks.1.norm1.bias", "head.weight"]
)
def test_a_changed_weight_changes_the_answers_as_in_a_deep_copy(model, change, part, generator):
    """Nothing of a model's weights is kept elsewhere, however they are changed."""
    x, q = inputs(model, 2), random_quat((64, 2), generator=generator)
    with torch.no_grad():
        model(x).log_prob(q)
    change(dict(model.named_parameters())[part])
    with torch.no_grad():
        assert torch.equal(model(x).log_prob(q), copy.deepcopy(model)(x).log_prob(q))
