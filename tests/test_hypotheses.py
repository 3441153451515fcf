"""Modes of a distribution over poses as hypotheses, and as a ROS message."""

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused
from scenes import CAMERA, RADIUS, box_of, picture, pose_model

import aquamam
from aquamam.errors import InputError
from aquamam.geometry.rotations import (
    geodesic_angle,
    multiply,
    random_quat,
    rotate,
    rotvec_to_quat,
)
from aquamam.network.poses import Part, part_of
from aquamam.posterior.hypotheses import find_hypotheses, to_detection3d

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
    refused("2 parts and 1 classes", to_detection3d, [found, found], "camera", class_ids=["die"])


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


def test_what_tells_no_pose_gets_one_clear_sentence():
    model, image = pose_model(), Image.new("RGB", (160, 120))
    with pytest.raises(InputError, match="as many, or one for all, got 2 for 3"):
        aquamam.poses(model, [image, image, image], [[1, 2, 3, 4], [1, 2, 3, 4]], CAMERA)
    refused("must meet its image", aquamam.poses, model, image, (300, 300, 20, 20), CAMERA)
    model.learn(part={"radius": -1.0})
    refused("positive radius", part_of, model)
    model.learn(part=None)
    refused("needs the part's size", aquamam.poses, model, image, (30, 30, 20, 20), CAMERA)
    with pytest.raises(InputError, match="rotations only"):
        aquamam.poses(aquamam.load("cylinder"), image, (30, 30, 20, 20), CAMERA)
