"""A distribution over poses: exact mass, Jacobian, sampler and marginal, whatever the crop's camera; and its modes
as hypotheses."""

import math

import numpy as np
import pytest
import torch
from networks import tiny_config
from PIL import Image
from refusals import refused
from scenes import CAMERA, RADIUS, box_of, picture, pose_model

import aquamam
from aquamam.geometry.camera import Camera, Crop, cut, ray_rotation
from aquamam.geometry.rotations import geodesic_angle, multiply, random_quat, rotate, rotvec_to_quat
from aquamam.network.model import AQuaMaM
from aquamam.network.poses import Part
from aquamam.posterior import windows
from aquamam.posterior.hypotheses import find_hypotheses, to_detection3d
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


def test_straight_behind_the_camera_there_is_no_density(poses):
    behind = multiply(poses.turn, torch.tensor([[0.0, 0, 0, 1]] * 2, dtype=torch.float64))
    there = rotate(poses.turn, torch.tensor([[0.0, 0, 100.0]] * 2, dtype=torch.float64))
    poses.centre = torch.zeros(3, dtype=torch.float64)
    assert torch.isneginf(poses.log_prob(Pose(behind, there))).all()


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


CENTRE = torch.tensor([0.1, -0.2, 0.05], dtype=torch.float64)


@pytest.fixture
def drawn(generator):
    """Two modes of 70 and 30 % about known poses, Gaussian with known covariances."""
    modes = random_quat((2,), generator=generator, dtype=torch.float64)
    places = torch.tensor([[0.1, 0.2, -1.0], [-0.3, 0.0, -2.0]], dtype=torch.float64)
    which = (torch.arange(2000) >= 1400).long()
    noise = torch.randn(2000, 6, generator=generator, dtype=torch.float64)
    spread = torch.tensor([0.01, 0.02, 0.1, 0.03, 0.06, 0.04], dtype=torch.float64)
    noise = noise * spread
    noise[:, 5] += 0.4 * noise[:, 0]  # x and the rotation about z go together
    q = multiply(rotvec_to_quat(noise[:, 3:]), modes[which])
    t = places[which] + noise[:, :3] - rotate(q, CENTRE)
    truth = torch.diag(spread.square())
    truth[5, 5] += 0.4**2 * truth[0, 0]
    truth[0, 5] = truth[5, 0] = 0.4 * truth[0, 0]
    return q, t, modes, places, truth


def test_each_mode_is_a_hypothesis_with_its_share_pose_and_covariance(drawn):
    q, t, modes, places, truth = drawn
    found = find_hypotheses(q, t, CENTRE)
    assert [one.score for one in found] == pytest.approx([0.7, 0.3], abs=0.01)
    for one, mode, place in zip(found, modes, places):
        turned = torch.tensor(one.quaternion, dtype=torch.float64)
        assert float(geodesic_angle(turned, mode)) < 0.05
        centre = torch.tensor(one.translation, dtype=torch.float64) + rotate(turned, CENTRE)
        assert centre.tolist() == pytest.approx(place.tolist(), abs=0.01)
        assert one.kind == "point"
    # about the part's centre the covariance is the one that was drawn from
    plain = find_hypotheses(q, t + rotate(q, CENTRE), torch.zeros(3, dtype=torch.float64))[0]
    np.testing.assert_allclose(plain.covariance, truth, atol=5e-4)
    assert plain.covariance[0, 5] == pytest.approx(float(truth[0, 5]), rel=0.4)


def test_frames_differ_by_half_a_revolution_about_x_and_covariances_go_along(drawn):
    q, t, *_ = drawn
    one = find_hypotheses(q, t, CENTRE)[0]
    other = one.to_frame("opencv")
    flip = np.diag([1.0, -1.0, -1.0])
    np.testing.assert_allclose(other.matrix, flip @ one.matrix, atol=1e-9)
    np.testing.assert_allclose(other.translation, flip @ one.translation)
    both = np.kron(np.eye(2), flip)
    np.testing.assert_allclose(other.covariance, both @ one.covariance @ both)
    assert other.to_frame("opengl").translation == one.translation
    assert other.frame == other.to_dict()["frame"] == "opencv"
    refused("opengl or opencv", one.to_frame, "ros")


def test_the_ros_message_has_the_optical_frame_metres_and_the_best_score_first(drawn):
    q, t, *_ = drawn
    found = find_hypotheses(q, 1000 * t, 1000 * CENTRE)  # in millimetres
    message = to_detection3d(
        [found[::-1], []], "camera_optical_frame", class_ids=["die", "cup"], metres=0.001, radius=50.0, stamp=(12, 34)
    )
    assert message["header"] == {"stamp": {"sec": 12, "nanosec": 34}, "frame_id": "camera_optical_frame"}
    first, second = message["detections"]
    assert [r["hypothesis"]["score"] for r in first["results"]] == [found[0].score, found[1].score]
    assert first["results"][0]["hypothesis"]["class_id"] == "die"
    best, optical = first["results"][0]["pose"], found[0].to_frame("opencv")
    assert list(best["pose"]["position"].values()) == pytest.approx([x / 1000 for x in optical.translation])
    assert best["pose"]["position"]["z"] > 0  # before the camera
    assert tuple(best["pose"]["orientation"].values()) == optical.quaternion
    assert best["covariance"][0] == pytest.approx(optical.covariance[0, 0] * 1e-6)
    assert best["covariance"][3] == pytest.approx(optical.covariance[0, 3] * 1e-3)
    assert best["covariance"][35] == pytest.approx(optical.covariance[5, 5])
    assert len(best["covariance"]) == 36
    assert first["bbox"] == {"center": best["pose"], "size": {"x": 0.1, "y": 0.1, "z": 0.1}}
    assert second["results"] == []


def test_poses_of_boxes_are_the_crops_posteriors():
    model, t = pose_model(), np.array([1.5, -0.8, -20.0])
    image = Image.fromarray(picture(np.eye(3), t))
    box = box_of(np.asarray(image))
    found = aquamam.poses(model, image, [box, [20, 10, 40, 30]], CAMERA)
    assert tuple(found.batch_shape) == (2,)
    alone = aquamam.poses(model, [image], box, [CAMERA])
    torch.testing.assert_close(alone.mode.translation[0], found.mode.translation[0], atol=1e-4, rtol=1e-4)
    drawn = found.sample(20, generator=torch.Generator().manual_seed(0))
    assert bool((drawn.translation[..., 2] < 0).all())
    twice = aquamam.poses(model, image, box, CAMERA, part=Part(radius=2 * RADIUS))
    torch.testing.assert_close(twice.mode.translation, 2 * alone.mode.translation, atol=1e-4, rtol=1e-4)
    hypotheses = found.hypotheses(200, generator=torch.Generator().manual_seed(0))
    assert len(hypotheses) == 2
    assert all(0 < one.score <= 1 for of_one in hypotheses for one in of_one)


def test_a_crop_on_the_axis_is_a_plain_crop_and_others_show_what_a_turned_camera_sees():
    """A small picture with one bright pixel: its ray, through the crop's camera, is the pixel's ray."""
    camera = Camera(fx=300.0, fy=300.0, cx=100.0, cy=80.0)
    picture = Image.new("RGB", (200, 160))
    picture.paste((255, 255, 255), (150, 40, 154, 44))
    crop, about = cut(picture, (130, 20, 40, 40), 64, camera)
    pixels = np.asarray(crop)[..., 0] / np.asarray(crop)[..., 0].sum()
    row, column = (np.indices((64, 64)) * pixels).sum((1, 2))
    a = torch.tensor([(column + 0.5) / 64 - 0.5, (row + 0.5) / 64 - 0.5]) * about.side / about.focal
    ray = rotate(about.turn, torch.tensor([float(a[0]), -float(a[1]), -1.0], dtype=torch.float64))
    assert float(ray[0] / -ray[2]) == pytest.approx(52 / 300, abs=2e-3)
    assert float(ray[1] / -ray[2]) == pytest.approx(38 / 300, abs=2e-3)
