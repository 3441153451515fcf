"""The systems' own promises: the flow's maps, AQuaMaM-MoG's change of variables, encoders, configs; test_laws.py has
the rest."""

import pytest
import torch
from PIL import Image
from refusals import refused
from registry import SMALL, wild
from safetensors.torch import save_file

from aquamam.baselines.bingham import Bingham, BinghamConfig
from aquamam.baselines.encoder import Encoder, EncoderConfig, ResNet50
from aquamam.baselines.flow import FlowConfig, MoebiusCoupling, QuaternionAffine, RotationFlow
from aquamam.baselines.mog import AQuaMaMMoG, MoGConfig
from aquamam.geometry.rotations import geodesic_angle, inverse, multiply, quat_to_rotvec, random_quat, rotvec_to_quat


def flow_layer(name: str):
    torch.manual_seed(3)
    affine = name == "affine"
    layer = wild(QuaternionAffine(8), 0.7) if affine else wild(MoebiusCoupling(8, 16, 5, "xyz".index(name)), 0.5)
    return layer, layer.context(torch.randn(2, 8)).detach()


LAYERS = pytest.mark.parametrize("name", ["affine", "x", "y", "z"])


@LAYERS
@torch.no_grad()
def test_flow_layers_are_inverted(name, generator):
    layer, context = flow_layer(name)
    q = random_quat((500, 2), generator=generator, dtype=torch.float64)
    there, _ = layer(q, context)
    assert geodesic_angle(there, q).mean() > 0.3  # it does something
    assert geodesic_angle(layer.inverse(there, context), q).max() < 1e-6
    assert geodesic_angle(layer(layer.inverse(q, context), context)[0], q).max() < 1e-6


@LAYERS
def test_flow_log_determinants_agree_with_the_jacobian(name, generator):
    """In exponential coordinates about q and about its image."""
    layer, context = flow_layer(name)
    for q in random_quat((12, 1, 2), generator=generator, dtype=torch.float64):
        there, log_det = layer(q, context)
        for image in range(2):

            def local(v, image=image, q=q, there=there):
                moved = q.clone()
                moved[0, image] = multiply(q[0, image], rotvec_to_quat(v))
                return quat_to_rotvec(multiply(inverse(there[0, image]), layer(moved, context)[0][0, image]))

            jacobian = torch.autograd.functional.jacobian(local, torch.zeros(3, dtype=torch.float64))
            assert torch.linalg.slogdet(jacobian)[1].item() == pytest.approx(log_det[0, image].item(), abs=1e-5)
            assert torch.linalg.det(jacobian) > 0


@torch.no_grad()
def test_the_whole_flow_returns_and_training_precision_agrees(generator):
    torch.manual_seed(0)
    model = wild(RotationFlow(FlowConfig(encoder="category", category_features=8, couplings=6, segments=8)), 0.15)
    posterior = model.posterior(torch.arange(2))
    q = random_quat((200, 2), generator=generator, dtype=torch.float64)
    there, log_det = posterior.to_uniform(q)
    assert log_det.std() > 0.5
    assert geodesic_angle(posterior.from_uniform(there), q).max() < 1e-5
    exact = -posterior.log_prob(q).mean()
    assert model.loss(torch.arange(2), q).item() == pytest.approx(exact.item(), abs=1e-3)


@torch.no_grad()
def test_mog_density_is_the_papers_formula(generator):
    """Appendix: products of mixtures at s = ln(q + u) - ln(u - q), times 2u / (u^2 - q^2), times q_w."""
    torch.manual_seed(0)
    config = MoGConfig(encoder="category", dim=16, heads=2, layers=1, hidden=32, components=4, tokens=3)
    model = wild(AQuaMaMMoG(config), 0.2)
    images = torch.arange(2)
    posterior = model.posterior(images)
    q = random_quat((10, 2), generator=generator, dtype=torch.float64)
    expected = q[..., 3].log()
    first = model.encoder.encode(images).first()
    rest, _ = model.encoder.encode(images).rest(torch.zeros(10, 2, dtype=torch.long), q[..., :2].float())
    outputs = [first.expand(10, 2, 12), rest[:, :, 0], rest[:, :, 1]]
    for c, out in enumerate(outputs):
        u = (1 - q[..., :c].square().sum(-1)).sqrt()
        s = (q[..., c] + u).log() - (u - q[..., c]).log()
        weight, mean, log_std = out.double().chunk(3, -1)
        gaussians = torch.distributions.Normal(mean, log_std.exp()).log_prob(s[..., None])
        expected = expected + (weight.log_softmax(-1) + gaussians).logsumexp(-1)
        expected = expected + (2 * u / (u.square() - q[..., c].square())).log()
    assert torch.allclose(posterior.log_prob(q), expected, atol=1e-5)


def test_mog_toy_is_the_papers_network_with_another_head():
    config = MoGConfig(encoder="category", dim=64, heads=8, layers=3, hidden=256)
    assert AQuaMaMMoG(config).parameter_count == 243_904 + 65 * 3 * 512


@pytest.mark.parametrize(("encoder", "features"), [("category", 10), ("stem", 16), ("patches", 16), ("resnet50", 2048)])
def test_every_encoder_gives_one_feature_an_image(encoder, features):
    sizes = {"image_size": 32, "channels": 1, "categories": 4, "category_features": 10, "stem": (8, 8, 8)}
    config = EncoderConfig(encoder=encoder, **SMALL, **sizes, stem_blocks=(0, 1, 0))
    assert config.features == features
    module = Encoder(config).eval()
    images = torch.arange(3) if encoder == "category" else torch.randint(256, (3, 1, 32, 32), dtype=torch.uint8)
    with torch.no_grad():
        out = module(images)
        assert out.shape == (3, features)
        assert module(images[:0]).shape == (0, features)
        if encoder != "category":
            assert torch.allclose(module(images.float() / 255), out, atol=1e-4)
            assert module(Image.new("RGB", (50, 40), "red")).shape == (1, features)
        model = Bingham(BinghamConfig.from_dict(config.to_dict())).eval()
        assert model(images).log_prob(random_quat((2, 3))).shape == (2, 3)


def test_resnet50_reads_torchvisions_weights(tmp_path):
    """161 parameters of a full ResNet-50; ours lack the two of the classifier: 23,508,032 numbers."""
    source = ResNet50()
    assert sum(p.numel() for p in source.parameters()) == 23_508_032
    assert len(list(source.parameters())) == 159
    state = {**source.state_dict(), "fc.weight": torch.zeros(1000, 2048), "fc.bias": torch.zeros(1000)}
    assert "layer4.2.bn3.running_var" in state
    assert "layer2.0.downsample.1.weight" in state
    torch.save(state, tmp_path / "resnet50-test.pth")
    save_file(state, tmp_path / "resnet50.safetensors")
    for file in ("resnet50-test.pth", "resnet50.safetensors"):
        target = ResNet50()
        target.load_imagenet(tmp_path / file)
        assert torch.equal(target.layer3[2].conv2.weight, source.layer3[2].conv2.weight)
    del state["layer4.2.bn3.running_var"]
    torch.save(state, tmp_path / "part.pth")
    (tmp_path / "text.pth").write_text("hello")
    for file, rule in (("none.pth", "no weight file"), ("part.pth", "not a ResNet-50"), ("text.pth", "plain tensors")):
        refused(rule, ResNet50().load_imagenet, tmp_path / file)


def test_resnet50_normalises_as_imagenet_does():
    network = ResNet50().eval()
    seen = []
    network.conv1.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    with torch.no_grad():
        network(torch.full((1, 3, 32, 32), 255, dtype=torch.uint8))
    expected = torch.tensor([(1 - 0.485) / 0.229, (1 - 0.456) / 0.224, (1 - 0.406) / 0.225])
    assert torch.allclose(seen[0][0, :, 0, 0], expected, atol=1e-5)
