"""The network: counts, caches, masks, inputs."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

import aquamam
from aquamam.posterior import decoding as choosing
from aquamam.network import layers
from aquamam.network import products
from aquamam.posterior import sentences
from aquamam.errors import InputError
from aquamam.network.images import to_rgb
from aquamam.network.model import AQuaMaM, ModelConfig
from aquamam.training.presets import MODELS
from aquamam.geometry.rotations import geodesic_angle, random_quat
from benchmarks.plain import PlainAQuaMaM

TINY = {
    "stem": ModelConfig(
        bins=30,
        dim=24,
        heads=2,
        layers=2,
        hidden=32,
        embedding="stem",
        image_size=16,
        stem=(8, 8),
        stem_blocks=(0, 1),
        sharpness=(1.3, 0.8, 1.2),
        by_volume=True,
        spill=0.3,
        contrast=(0.5, 1.0, 1.6),
    ),
    "patches": ModelConfig(
        bins=31, dim=24, heads=2, layers=3, hidden=32, image_size=16, patch_size=8, chart="hemisphere", density="paper"
    ),
    "category": ModelConfig(
        bins=30, dim=24, heads=2, layers=2, hidden=32, embedding="category", tokens=5, chart="hemisphere"
    ),
}


@pytest.fixture(params=TINY)
def model(request) -> AQuaMaM:
    torch.manual_seed(0)
    return AQuaMaM(TINY[request.param]).eval()


def inputs(model: AQuaMaM, count: int) -> torch.Tensor:
    if model.config.embedding == "category":
        return torch.arange(count) % 6
    return torch.rand((count, 3, 16, 16), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(("preset", "count"), [("toy", 3_510_609), ("die", 20_000_756)])
def test_parameter_counts_are_the_papers(preset, count):
    with torch.device("meta"):
        assert AQuaMaM(MODELS[preset]).parameter_count == count


@pytest.mark.parametrize("layers", [1, 3])
def test_log_prob_and_decoding_equal_the_plain_forward_pass(layers, tmp_path, generator):
    """Shared prefix, pruned last layer, cached decoding: the same numbers as one padded sequence a rotation."""
    torch.manual_seed(layers)
    plain = PlainAQuaMaM(40, 24, 8, layers, image=16, patch=8).eval()
    torch.save(plain.state_dict(), tmp_path / "original.pt")
    model = aquamam.import_original(tmp_path / "original.pt")
    images = torch.rand((5, 3, 16, 16), generator=generator)
    q = random_quat((7, 5), generator=generator)
    with torch.no_grad():
        posterior = model(images)
        expected = torch.stack([plain.log_prob(images, row) for row in q])
        assert torch.allclose(posterior.log_prob(q).double(), expected, atol=1e-4)
        assert geodesic_angle(posterior.mode, plain.predict(images)).max() < 1e-4


def test_toy_checkpoint_of_the_original_imports(tmp_path, generator):
    plain = PlainAQuaMaM(101, 16, 8, 2, categories=6, tokens=9).eval()
    torch.save({f"module.{k}": v for k, v in plain.state_dict().items()}, tmp_path / "toy.pt")
    model = aquamam.import_original(tmp_path / "toy.pt")
    q = random_quat((6,), generator=generator)
    with torch.no_grad():
        assert torch.allclose(
            model(torch.arange(6)).log_prob(q).double(), plain.log_prob(torch.arange(6), q), atol=1e-4
        )


def test_many_rotations_at_once_equal_one_at_a_time(model, generator):
    q = random_quat((1000 if model.config.embedding == "stem" else 100, 2), generator=generator)
    with torch.no_grad():
        posterior = model(inputs(model, 2))
        together = posterior.log_prob(q)
        alone = torch.stack([posterior.log_prob(row) for row in q])
    assert torch.allclose(together, alone, atol=1e-5)


def test_decoded_sentences_have_their_teacher_forced_probability(model, generator):
    """Stepwise decoding with its cache and one pass with both tokens agree."""
    with torch.no_grad():
        posterior = model(inputs(model, 3))
        best = posterior.topk(5)
        point = model.cells.chart.split(best.quaternions.double())
        cell = model.cells.locate(point)
        if model.cells.density == "paper":
            point = point._replace(u=model.cells.centre(cell))
        assert torch.allclose(posterior._sentence_log_prob(point, cell), best.log_probs, atol=1e-4)


@pytest.mark.parametrize("model", ["stem", "category"], indirect=True)  # those that see bins only
@pytest.mark.parametrize("sharp", [1.0, 40.0])
def test_sentences_that_share_passes_are_those_that_do_not(model, sharp, monkeypatch):
    """Samples and their likelihoods, where all prefixes differ and where most are equal."""
    model.config = replace(model.config, sharpness=(sharp,) * 3)
    with torch.no_grad():
        posterior = model(inputs(model, 3))
        asked: list[int] = []
        rest = posterior.conditionals.rest
        posterior.conditionals.rest = lambda *args: asked.append(len(args[0])) or rest(*args)
        apart, together = (
            posterior.decode(choosing.sampler(300, g := torch.Generator().manual_seed(2)), g, shared=shared)
            for shared in (False, True)
        )
        assert max(asked[:2]) == 300
        assert asked[2] <= 120
        assert asked[3] <= (300 if sharp == 1 else 60)
        assert (apart.cell == together.cell).all(-1).float().mean() > 0.99  # rounding may move a draw across an edge
        q = posterior.sample((300,))
        monkeypatch.setattr(sentences, "WORTH", 0)
        shared = posterior.log_prob(q)
        monkeypatch.setattr(sentences, "WORTH", float("inf"))
        torch.testing.assert_close(shared, posterior.log_prob(q), rtol=1e-4, atol=1e-3)
        assert posterior.sample((0,)).shape == (0, 3, 4)


@pytest.mark.parametrize("count", [1, 3])
def test_a_posterior_outlives_those_after_it(model, count, generator):
    """Memory of posteriors that are gone is used again, that of those which are not is left alone."""
    images, q = inputs(model, 2 * count), random_quat((4, count), generator=generator)
    with torch.inference_mode():
        first = model(images[:count])
        expected = first.log_prob(q)
        for _ in range(3):
            second = model(images[count:])  # the one before goes only when this is there
        assert torch.equal(first.log_prob(q), expected)
        assert not torch.equal(second.log_prob(q), expected)
        del first
        assert torch.equal(model(images[:count]).log_prob(q), expected)


@pytest.mark.parametrize("count", [1, 3])
def test_a_layer_takes_tokens_in_any_layout(model, count):
    block, x = model.blocks[0], torch.randn(7, count, model.config.dim).transpose(0, 1)
    expected = block.prefix(x)[0].detach()
    with torch.no_grad():
        assert torch.allclose(block.prefix(x)[0], expected, atol=1e-5)


def test_images_in_a_batch_do_not_see_each_other(model, generator):
    x = inputs(model, 4)
    q = random_quat((5, 4), generator=generator)
    with torch.no_grad():
        together = model(x).log_prob(q)
        alone = torch.cat([model(x[i : i + 1]).log_prob(q[:, i : i + 1]) for i in range(4)], 1)
    assert torch.allclose(together, alone, atol=1e-5)


@pytest.mark.parametrize("floats", [1, 1 << 20])
@pytest.mark.parametrize("fused", [True, False])
def test_outside_of_autograd_the_same_comes_out(model, floats, fused, monkeypatch, generator):
    """In place, a few images at a time, with or without oneDNN's fused GELU: the numbers are those that training sees."""
    monkeypatch.setattr(layers, "CACHE_FLOATS", floats)
    monkeypatch.setattr(products, "ONEDNN", products.ONEDNN if fused else None)
    x, q = inputs(model, 5), random_quat((20, 5), generator=generator)
    kept = x.clone()
    recorded = model(x)
    with torch.no_grad():
        quick = model(x)
        assert torch.allclose(quick.log_prob(q), recorded.log_prob(q), atol=1e-5)
        assert torch.allclose(quick.mode, recorded.mode, atol=1e-6)
        for mine, theirs in zip(quick.conditionals.layers, recorded.conditionals.layers):
            assert torch.allclose(mine.keys, theirs.keys, atol=1e-5)
            assert torch.allclose(mine.values, theirs.values, atol=1e-5)
    assert torch.equal(x, kept)


@pytest.mark.parametrize("batch", [1, 3])
def test_one_token_of_one_rotation_equals_the_general_case(model, batch, generator):
    """Greedy decoding has operations of its own outside of autograd."""
    images = inputs(model, batch)
    chart = torch.arange(batch)[None] % model.cells.chart.count
    seen = torch.rand((2, 1, batch, 1), generator=generator) - 0.5
    found = []
    for recorded in (True, False):
        with torch.set_grad_enabled(recorded):
            prefix = model.encode(images)
            first, past = prefix.rest(chart, seen[0])
            second, past = prefix.rest(chart, seen[1], past)
            found.append([first, second, *past])
    for general, alone in zip(*found):
        assert torch.allclose(general, alone, atol=1e-5)


@pytest.mark.parametrize("rotations", [1, 3])
def test_one_sequence_an_image_equals_prefix_and_rotations(model, rotations, generator):
    """What training on known rotations takes, and its gradients, are those of encoding first."""
    images, batch = inputs(model, 2), 2
    chart = torch.arange(rotations * batch).reshape(rotations, batch) % model.cells.chart.count
    seen = torch.rand((rotations, batch, 2), generator=generator) - 0.5
    found = []
    for at_once in (True, False):
        if at_once:
            prepared = model.prepare(images)
            start, states = model.together(
                prepared if model.config.embedding == "category" else layers.normalise(prepared), chart, seen
            )
        else:
            prefix = model.encode(images)
            start, states = model.norm(prefix.start), prefix.states(chart, seen)[0]
        model.zero_grad()
        ((start * torch.arange(start.shape[-1])).sum() + states.square().sum() + states.pow(3).sum()).backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        found.append([start, states, *gradients])
    assert len(found[0]) == len(found[1]) > 10
    for one, other in zip(*found):
        assert torch.allclose(one, other, atol=1e-3, rtol=1e-3)


def test_no_images_have_no_predictions(model):
    with torch.no_grad():
        posterior = model(inputs(model, 3)[:0])
        assert posterior.mode.shape == (0, 4)
        assert posterior.sample((5,)).shape == (5, 0, 4)


def test_log_prob_is_differentiable_in_every_weight(model, generator):
    loss = model.loss(inputs(model, 3), random_quat((2, 3), generator=generator, dtype=torch.float64), smoothing=2.0)
    loss.backward()
    silent = [n for n, p in model.named_parameters() if p.grad is None or not p.grad.isfinite().all()]
    assert silent == []


def test_training_mode_of_the_posterior_follows_the_weights(model, generator):
    """A gradient step on minus log_prob raises log_prob."""
    x, q = inputs(model, 2), random_quat((1, 2), generator=generator)
    before = model(x).log_prob(q).mean()
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    (-before).backward()
    optimizer.step()
    assert model(x).log_prob(q).mean() > before


def test_pil_images_lists_and_tensors_are_read_alike():
    torch.manual_seed(0)
    model = AQuaMaM(TINY["stem"]).eval()
    pixels = np.random.default_rng(0).integers(0, 256, (16, 16, 3), dtype=np.uint8)
    tensor = torch.from_numpy(pixels).permute(2, 0, 1)
    q = torch.tensor([0.5, 0.5, 0.5, 0.5])
    with torch.no_grad():
        expected = model(tensor[None]).log_prob(q)
        for images in (
            tensor,
            tensor[None].float() / 255,
            Image.fromarray(pixels),
            [Image.fromarray(pixels)],
            [tensor],
        ):
            assert torch.allclose(model(images).log_prob(q), expected, atol=1e-5)
        assert model([]).batch_shape == (0,)
        assert model(Image.fromarray(np.zeros((40, 50), np.uint8))).batch_shape == (1,)


@pytest.mark.parametrize(
    ("images", "rule"),
    [
        (torch.zeros(1, 3, 17, 16), "shape"),
        (torch.zeros(1, 1, 16, 16), "shape"),
        (torch.zeros(16, 16), "shape"),
        (torch.full((1, 3, 16, 16), 255.0), r"\[0, 1\]"),
        (torch.full((1, 3, 16, 16), torch.nan), r"\[0, 1\]"),
        (torch.zeros(1, 3, 16, 16, dtype=torch.int64), "uint8 or floating"),
    ],
)
def test_bad_images_get_one_clear_sentence(images, rule):
    with pytest.raises(InputError, match=rule):
        AQuaMaM(TINY["stem"])(images)


def test_wide_pixels_are_scaled_by_what_they_hold():
    """8-bit values in 32 bits, 16-bit values in 16 or 32, and floats up to 1 or 255 are one picture."""
    grey = np.linspace(0, 255, 64).round().astype(np.uint8).reshape(8, 8)
    expected = np.asarray(to_rgb(Image.fromarray(grey)))
    wide = grey.astype(np.int32)
    for values in (wide, wide * 257, (wide * 257).astype(np.uint16), wide / np.float32(255), wide.astype(np.float32)):
        assert np.array_equal(np.asarray(to_rgb(Image.fromarray(values))), expected)


def test_bad_categories_get_one_clear_sentence():
    model = AQuaMaM(TINY["category"])
    with pytest.raises(InputError, match="0 to 5"):
        model(torch.tensor([6]))
    with pytest.raises(InputError, match="categories"):
        model(torch.zeros(1, 3, 16, 16))


@pytest.mark.parametrize(
    "change",
    [
        {"dim": 30, "heads": 4},
        {"layers": 0},
        {"dropout": 1.0},
        {"embedding": "cnn"},
        {"image_size": 30},
        {"bins": 0},
        {"sharpness": (1.0, 0.0, 1.0)},
        {"sharpness": (1.0, 1.0)},
        {"contrast": (1.0, 0.0, 1.0)},
        {"contrast": (1.0,)},
        {"spill": 2.0},
        {"chart": "disk"},
    ],
)
def test_bad_configs_get_one_clear_sentence(change):
    with pytest.raises(InputError, match="must"):
        ModelConfig(**change)


def test_a_million_rotations_come_in_bounded_chunks(model):
    """The working set of one chunk is bounded whatever the number of rotations."""
    from aquamam.posterior.distribution import CHUNK_FLOATS

    posterior = model(inputs(model, 2))
    rows = posterior._rotations_per_chunk() * 2
    assert rows * (4 * model.config.bins + posterior.conditionals.row_floats) <= CHUNK_FLOATS * 1.01
