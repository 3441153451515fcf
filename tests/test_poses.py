"""A distribution over poses: exact mass, Jacobian, sampler and marginal, whatever the crop's camera."""

import math

import numpy as np
import pytest
import torch
from networks import tiny_config
from PIL import Image
from refusals import refused

from aquamam.errors import InputError
from aquamam.geometry.camera import Camera, Crop, cut, ray_rotation
from aquamam.geometry.rotations import geodesic_angle, random_quat, rotate
from aquamam.network.model import AQuaMaM
from aquamam.posterior import windows
from aquamam.posterior.poses import Pose, PoseDistribution

CONFIG = tiny_config(layers=2, pose=True)


@pytest.fixture
def poses() -> PoseDistribution:
    torch.manual_seed(0)
    model = AQuaMaM(CONFIG).eval()
    with torch.no_grad():
        for head in (model.head, model.first_head, model.pose_head):
            head.weight.mul_(4)
    images = torch.rand((2, 3, 16, 16), generator=torch.Generator().manual_seed(1))
    turns = ray_rotation(torch.tensor([[0.1, -0.2, -1.0], [0.3, 0.3, -1.0]], dtype=torch.float64))
    crops = [Crop(turn=turns[0], focal=600.0, side=90.0), Crop(turn=turns[1], focal=500.0, side=200.0)]
    return PoseDistribution(model(images), crops, radius=0.07, centre=(0.01, -0.02, 0.03))


def test_poses_and_windows_are_one_to_one(poses, generator):
    q = random_quat((50, 2), generator=generator, dtype=torch.float64)
    window = torch.rand((50, 2, 3), generator=generator, dtype=torch.float64) - 0.5
    again, same = poses.to_window(poses.to_pose(q, window))
    assert float(geodesic_angle(again, q).max()) < 1e-9
    torch.testing.assert_close(same, window)


def test_the_change_of_variables_is_autograds(poses, generator):
    window = torch.rand((2, 3), generator=generator, dtype=torch.float64) - 0.5
    q = random_quat((2,), generator=generator, dtype=torch.float64)
    poses.centre = torch.zeros(3, dtype=torch.float64)  # else t depends on R, too
    jacobian = torch.autograd.functional.jacobian(lambda w: poses.to_pose(q, w).translation, window)
    for i in range(2):
        z = poses.radius / (poses.share[i] * 0.45 * window[i, 2].exp())
        expected = 2 * poses.share[i].log() + 3 * z.log()
        assert float(torch.linalg.slogdet(jacobian[i, :, i])[1]) == pytest.approx(float(expected), abs=1e-9)


def test_the_total_mass_is_one_and_samples_follow_the_density(poses, generator):
    """Importance sampling from half uniform, half the distribution: the weight 2 p / (u + p) is at most 2."""
    count, volume = 3000, math.prod(high - low for low, high in zip(windows.LOW, windows.HIGH))
    anywhere = windows.value(
        CONFIG.bins * torch.rand((count, 2, 3), generator=generator, dtype=torch.float64), CONFIG.bins
    )
    uniform = poses.to_pose(random_quat((count, 2), generator=generator, dtype=torch.float64), anywhere)
    drawn = poses.sample(count, generator=generator)
    both = Pose(*(torch.cat(parts) for parts in zip(uniform, drawn)))
    _, window = poses.to_window(both)
    z = poses.radius / (poses.share * 0.45 * window[..., 2].exp())
    log_u = -math.log(math.pi**2 * volume) - 2 * poses.share.log() - 3 * z.log()
    weight = 2 * torch.sigmoid(poses.log_prob(both) - log_u)
    halves = weight.unflatten(0, (2, count))
    error = (halves.var(1) / count).sum(0).sqrt() / 2
    assert bool(((weight.mean(0) - 1).abs() < 4 * error).all())


def test_the_marginal_over_translations_is_the_rotations_posterior(poses):
    """Summed over all bins of the window, the joint density of a crop's rotation is that of the rotation alone."""
    n = CONFIG.bins
    place = torch.cartesian_prod(*[torch.arange(n)] * 3)
    window = windows.value(place.double() + 0.5, n)[:, None].expand(-1, 2, -1)
    q = random_quat((1, 2), generator=torch.Generator().manual_seed(3), dtype=torch.float64).expand(len(place), -1, -1)
    pose = poses.to_pose(q, window)
    z = poses.radius / (poses.share * 0.45 * window[..., 2].exp())
    per_window = poses.log_prob(pose) + 2 * poses.share.log() + 3 * z.log() + windows.log_volume(n)
    with torch.no_grad():
        alone = poses.rotation.log_prob(q[:1])[0].double()
    torch.testing.assert_close(per_window.logsumexp(0), alone, atol=1e-4, rtol=0)


def test_regions_hold_what_is_drawn_from_the_distribution(poses, generator):
    held = [poses.contains(Pose(*(x[0] for x in poses.sample(1, generator=generator))), 0.8) for _ in range(150)]
    assert float(torch.stack(held).double().mean()) == pytest.approx(0.8, abs=0.08)


def test_a_crop_on_the_axis_is_a_plain_crop_and_others_show_what_a_turned_camera_sees():
    """A small picture with one bright pixel: its ray, through the crop's camera, is the pixel's ray."""
    camera = Camera(fx=300.0, fy=300.0, cx=100.0, cy=80.0)
    picture = Image.new("RGB", (200, 160))
    picture.paste((255, 255, 255), (150, 40, 154, 44))
    crop, about = cut(picture, (130, 20, 40, 40), 64, camera)
    pixels = torch.tensor(list(crop.getdata()), dtype=torch.float64)[:, 0].reshape(64, 64)
    row, column = (
        (pixels.sum(1) * torch.arange(64)).sum() / pixels.sum(),
        (pixels.sum(0) * torch.arange(64)).sum() / pixels.sum(),
    )
    a = torch.tensor([(column + 0.5) / 64 - 0.5, (row + 0.5) / 64 - 0.5]) * about.side / about.focal
    ray = rotate(about.turn, torch.tensor([float(a[0]), -float(a[1]), -1.0], dtype=torch.float64))
    assert float(ray[0] / -ray[2]) == pytest.approx(52 / 300, abs=2e-3)
    assert float(ray[1] / -ray[2]) == pytest.approx(38 / 300, abs=2e-3)


def test_lens_distortion_is_undone():
    camera = Camera(fx=300.0, fy=310.0, cx=100.0, cy=80.0, distortion=(-0.2, 0.05, 0.001, -0.002, 0.01))
    u, v, _ = camera.ray(170.0, 30.0)
    assert camera.pixels(np.array([u, v, 1.0])) == pytest.approx([170.0, 30.0], abs=1e-6)


def test_crops_of_any_size_of_box_and_picture_are_means_of_their_pixels():
    """A gradient, which every crop keeps: at its middle is the value at the box's, and the slope is the box's."""
    wide = Image.fromarray(np.tile(np.linspace(0, 255, 3000).astype(np.uint8)[None, :, None], (2000, 1, 3)))
    for width in (8, 80, 800, 1600):
        crop, _ = cut(wide, (1500 - width / 2, 1000 - width / 2, width, width), 16)
        row = np.asarray(crop)[8, :, 0].astype(float)
        assert row.mean() == pytest.approx(127.5, abs=1.5)
        assert row[-1] - row[0] == pytest.approx(255 * 1.25 * width * 15 / 16 / 3000, abs=2.5)
    for image, box in ((wide, (-1e7, -1e7, 1e9, 1e9)), (Image.new("RGB", (1, 1)), (0, 0, 1, 1))):
        assert cut(image, box, 16)[0].size == (16, 16)


def test_a_camera_that_cannot_see_its_box_gets_one_clear_sentence():
    picture = Image.new("RGB", (200, 160))
    for focal in (1e-300, 1e-3):
        with pytest.raises(InputError, match="less than 180 degrees"):
            cut(picture, (10, 10, 50, 50), 16, Camera(fx=focal, fy=focal, cx=30.0, cy=30.0))


@pytest.mark.parametrize("box", [(0, 0, 0, 5), (300, 10, 20, 20), (0, 0, math.nan, 5), (1, 2, 3)])
def test_bad_boxes_get_one_clear_sentence(box):
    refused("box", cut, Image.new("RGB", (200, 160)), box, 32)


@pytest.mark.parametrize("values", [(0.0, 300.0, 1.0, 1.0), (300.0, math.inf, 1.0, 1.0)])
def test_bad_cameras_get_one_clear_sentence(values):
    with pytest.raises(InputError, match="camera"):
        Camera(**dict(zip(("fx", "fy", "cx", "cy"), values)))
