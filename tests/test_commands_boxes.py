"""Boxes, cameras and several parts, as a person gives them to predict."""

import csv
import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from refusals import refused
from scenes import CAMERA, box_of, picture, pose_model

import aquamam
from aquamam.checkpoints.checkpoint import save_model
from aquamam.cli.main import main
from aquamam.data.cameras import read_camera
from aquamam.data.detections import of_image, read_detections
from aquamam.geometry.camera import ray_rotation
from aquamam.geometry.rotations import geodesic_angle, multiply, opencv_to_opengl, random_quat
from aquamam.network.poses import look
from aquamam.posterior.distribution import Rotated

ROS = """
image_width: 640
image_height: 480
camera_name: head
camera_matrix: {rows: 3, cols: 3, data: [600.5, 0, 320, 0, 610, 240, 0, 0, 1]}
distortion_model: plumb_bob
distortion_coefficients: {rows: 1, cols: 5, data: [-0.1, 0.02, 0.001, 0.002, 0]}
"""
OPENCV = """%YAML:1.0
---
calibration_time: "Tue"
camera_matrix: !!opencv-matrix
   rows: 3
   cols: 3
   dt: d
   data: [ 6.005e+02, 0., 320., 0., 610., 240., 0., 0., 1. ]
distortion_coefficients: !!opencv-matrix
   rows: 5
   cols: 1
   dt: d
   data: [ -0.1, 0.02, 0.001, 0.002, 0. ]
"""
MESSAGE = "k: [600.5, 0, 320, 0, 610, 240, 0, 0, 1]\nd: [-0.1, 0.02, 0.001, 0.002, 0, 0, 0, 0]\n"


@pytest.fixture
def parts(tmp_path):
    for name in ("die", "obj_000007"):
        save_model(pose_model(), tmp_path / "parts" / name)
    return tmp_path / "parts"


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "000012.png"
    Image.fromarray(picture(np.eye(3), np.array([1.5, -0.8, -20.0]))).save(path)
    return path


@pytest.mark.parametrize("text", [ROS, OPENCV, MESSAGE])
def test_calibration_files_of_ros_and_opencv_tell_the_camera(text, tmp_path):
    (tmp_path / "camera.yaml").write_text(text)
    camera = read_camera(str(tmp_path / "camera.yaml"))
    assert (camera.fx, camera.fy, camera.cx, camera.cy) == (600.5, 610.0, 320.0, 240.0)
    assert camera.distortion == (-0.1, 0.02, 0.001, 0.002)
    assert read_camera("600.5,610,320,240").fy == 610


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (ROS.replace("plumb_bob", "equidistant"), "must be plumb_bob .* got 'equidistant'"),
        (ROS.replace("600.5", ".nan"), "must be finite"),
        (ROS.replace("[600.5, 0", "[600.5, 2"), "no skew"),
        (MESSAGE.replace("0, 0, 0]", "0, 0, 0.1]"), "at most k1, k2, p1, p2, k3"),
        ("camera_matrix: [1, 2]", "9 numbers, got 2"),
        ("camera_matrix: {data: [a]}", "must be numbers"),
        ("- 1", "named values"),
        ("a: [", "no YAML"),
        ("!!python/object/apply:os.system ['true']", "no YAML"),
    ],
)
def test_bad_calibration_files_get_one_clear_sentence(text, sentence, tmp_path):
    (tmp_path / "camera.yaml").write_text(text)
    refused(sentence, read_camera, str(tmp_path / "camera.yaml"))
    for source in ("1,2,3", "nan,600,1,1", "a,b,c,d", "nowhere.yaml"):
        refused("camera", read_camera, source)


def test_detections_of_coco_bop_and_yolo_tell_the_same_boxes(tmp_path):
    one = {"image_id": 12, "category_id": 7, "bbox": [10, 20, 30, 40]}
    files = {
        "results.json": [one | {"score": 0.5}],
        "bop.json": [one | {"score": 0.5, "scene_id": 3, "time": 0.1}],
        "annotations.json": {
            "images": [{"id": 12, "file_name": "left/000012.png"}],
            "categories": [{"id": 7, "name": "cup"}],
            "annotations": [one],
        },
    }
    (tmp_path / "yolo.txt").write_text(f"7 {25 / 160} {40 / 120} {30 / 160} {40 / 120} 0.5\n\n")
    for name, content in files.items():
        (tmp_path / name).write_text(json.dumps(content))
    for name in [*files, "yolo.txt"]:
        (found,), wrong = read_detections(tmp_path / name, (160, 120))
        assert found.box == pytest.approx((10, 20, 30, 40))
        assert found.labels[-2:] == ("obj_000007", "7")
        assert of_image([found], tmp_path / "000012.png", alone=True) == [found]
        assert not wrong
    (named,), _ = read_detections(tmp_path / "annotations.json")
    assert named.labels[0] == "cup"
    assert of_image([named], tmp_path / "000012.png", alone=False) == [named]
    assert of_image([named], tmp_path / "000013.png", alone=False) == []
    refused("shares of the image", read_detections, tmp_path / "yolo.txt")
    (tmp_path / "endless.json").write_text('[{"bbox": [1, 2, 3, 4], "category_id": Infinity}]')
    boxes, (wrong,) = read_detections(tmp_path / "endless.json")
    assert not boxes
    assert "numbers as ids" in str(wrong)


def test_a_rotated_posterior_has_the_densities_samples_and_predictions_of_its_inner_one(generator):
    inner = pose_model()(torch.rand((2, 3, 16, 16), generator=generator))
    by, q = (random_quat((n, 2), generator=generator, dtype=torch.float64) for n in (1, 9))
    rotated = Rotated(inner, by[0])
    torch.testing.assert_close(rotated.log_prob(multiply(by, q)), inner.log_prob(q))
    one, other = (p.sample(5, generator=torch.Generator().manual_seed(1)) for p in (inner, rotated))
    for mine, theirs in ((one, other), (inner.mode, rotated.mode), (inner.topk(3)[0], rotated.topk(3)[0])):
        assert float(geodesic_angle(multiply(by[0], mine.double()), theirs.double()).max()) < 1e-5


def test_a_box_and_a_camera_give_the_pose(prints, parts, photo):
    image = Image.open(photo)
    box = box_of(np.asarray(image))
    arguments = ["predict", photo, "--model", parts / "die", "--box", ",".join(map(str, box)), "--json"]
    arguments += ["--samples", 200]
    (told,) = json.loads(prints(*arguments, "--camera", "200,200,79.5,59.5"))
    mode = aquamam.poses(aquamam.load(parts / "die"), image, box, CAMERA).mode
    assert told["translation"] == pytest.approx(mode.translation[0].tolist(), rel=1e-4)
    q = torch.tensor(told["quaternion_xyzw"], dtype=torch.float64)
    assert float(geodesic_angle(q, mode.rotation[0])) < 1e-4
    assert (told["frame"], told["unit"], told["box"]) == ("opengl", "mm", box)
    assert all(len(one["covariance"]) == 6 for one in told["hypotheses"])
    (optical,) = json.loads(prints(*arguments, "--camera", "200,200,79.5,59.5", "--frame", "opencv"))
    x, y, z = told["translation"]
    assert optical["translation"] == pytest.approx([x, -y, -z])
    flipped = opencv_to_opengl(torch.tensor(optical["quaternion_xyzw"], dtype=torch.float64))
    assert float(geodesic_angle(flipped, q)) < 1e-5
    assert optical["hypotheses"][0]["frame"] == "opencv"
    (without,) = json.loads(prints(*arguments))
    assert "translation" not in without  # nobody knows the camera


def test_models_without_poses_are_rotated_by_the_ray_to_the_box(photo):
    model, image = aquamam.load("cylinder-plain"), Image.open(photo)
    box = (120, 20, 30, 30)
    plain = look(model, image, box, CAMERA)
    ray = torch.tensor([55 / 200, 25 / 200, -1.0], dtype=torch.float64)

    torch.testing.assert_close(plain.rotation.by[0], ray_rotation(ray))
    assert plain.poses is None
    torch.testing.assert_close(look(model, image, box).rotation.by[0], torch.tensor([0, 0, 0, 1.0]).double())


def test_every_detection_has_a_row_and_bad_ones_a_sentence(capsys, parts, photo, tmp_path):
    good = {"image_id": 12, "bbox": box_of(np.asarray(Image.open(photo))), "score": 0.75}
    rows = [
        good | {"category_id": 7},
        good | {"category_id": 8},  # no such model
        good | {"category_id": 7, "bbox": [500, 10, 20, 20]},  # outside
        good | {"category_id": 7, "bbox": [5, 10, 20]},
        good | {"category_id": 7, "bbox": [5, 10, 0, 10]},
        good | {"category_id": 7},
    ]
    (tmp_path / "boxes.json").write_text(json.dumps(rows))
    arguments = ["predict", photo, "--models", parts, "--detections", tmp_path / "boxes.json", "--samples", 0]
    arguments += ["--camera", "200,200,79.5,59.5"]
    assert main([*map(str, arguments), "--csv"]) == 2
    out, err = capsys.readouterr()
    answered = list(csv.DictReader(io.StringIO(out)))
    assert [row["model"] for row in answered] == ["obj_000007"] * 2
    assert float(answered[0]["tz"]) < 0
    assert answered[0]["detection"] == "0.75"
    assert answered[0]["frame"] == "opengl"
    assert len(err.splitlines()) == 4
    for sentence in ("no model for obj_000008 or 8", "must meet its image", "bbox", "positive area"):
        assert sentence in err
    main([*map(str, arguments)])
    assert len(capsys.readouterr().out.splitlines()) == 4  # two lines of head


def test_a_box_is_plotted_as_poses_in_the_photograph_or_as_the_posterior_of_its_crop(prints, parts, photo, tmp_path):
    arguments = ["plot", photo, "--model", parts / "die", "--box", "70,50,30,30", "--samples", 40, "--uniform", 10]
    for name, options in (("pose.png", ["--camera", "200,200,79.5,59.5"]), ("ball.png", []), ("page.html", [])):
        prints(*arguments, *options, "-o", tmp_path / name)
        assert (tmp_path / name).stat().st_size > 10_000
