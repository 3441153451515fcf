"""BOP's data and ours: crops, poses and metrics agree."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
from refusals import refused
from scenes import CAMERA, RADIUS, bop_folder, pose_model
from scipy.spatial.transform import Rotation

from aquamam.checkpoints.checkpoint import save_model
from aquamam.data.loaders.bop import BopDataset, read_instances
from aquamam.evaluation.bop import (
    Motion,
    Recalls,
    Result,
    add,
    add_s,
    judge,
    mspd,
    mssd,
    read_results,
    symmetry_motions,
    write_results,
)
from aquamam.geometry.camera import crop_camera
from aquamam.network.poses import Part, part_of
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid


@pytest.fixture
def folder(tmp_path):
    return bop_folder(tmp_path / "bop")


def test_a_crop_shows_the_part_as_a_camera_that_looks_at_it_does(folder):
    """The crop of a photograph taken sideways is a render about the optical axis under the loader's rotation, shifted
    and scaled as the loader's window says."""
    data = BopDataset(folder, "test", size=48, part=Part(radius=RADIUS))
    for i, one in enumerate(data.instances):
        crop, batch = crop_camera(one.box, one.camera), data.batch([i])
        x, y, b = batch.windows[0].tolist()
        distance = RADIUS * crop.focal / (crop.side * 0.45 * math.exp(b))
        settings = RenderSettings(
            size=240,
            distance=distance,
            fov_deg=2 * math.degrees(math.atan(crop.side * 2.5 / crop.focal)),
            supersample=4,
        )
        wide = render(solid("die").mesh, batch.rotations[0].numpy(), settings)[0].astype(float)  # of five sides
        left, top = 120 - 24 - round(48 * x), 120 - 24 - round(48 * y)
        straight = wide[top : top + 48, left : left + 48]
        shown = batch.images[0].permute(1, 2, 0).numpy().astype(float)
        assert np.abs(shown - straight).mean() < 12
        assert np.corrcoef(shown.ravel(), straight.ravel())[0, 1] > 0.95


def test_a_fitted_part_is_judged_on_bops_photographs(folder, tmp_path, prints, refuses):
    checkpoint = save_model(pose_model(), tmp_path / "parts" / "die")
    arguments = ["evaluate", checkpoint, "--data", folder, "--samples", 3, "--quiet", "--json"]
    told = json.loads(prints(*arguments, "--object", 7, "--min-visible", 0.6))
    assert told["images"] == 3
    assert told["data"].endswith("split test, object 7, at least 60% visible")
    assert "--object 9" in refuses(*arguments)
    assert "has the objects 7, not 4" in refuses(*arguments, "--object", 4)
    assert "give their folder with --data" in refuses("evaluate", checkpoint, "--object", 7)


def test_models_say_how_large_their_part_is():
    model = pose_model()
    assert part_of(model) == Part(radius=RADIUS, unit="mm")
    model.learn(part={"scale": 0.01, "centre": [1, 2, 3]})  # as version 0.1 wrote it
    assert part_of(model) == Part(radius=100 * math.sqrt(3), centre=(1.0, 2.0, 3.0))
    model.learn(part={"name": "bracket"})
    assert part_of(model) is None


IDENTITY = Motion(np.eye(3), np.zeros(3))
CUBE = np.array([[x, y, z] for x in (-1, 1) for y in (-1, 1) for z in (-1, 1)], float)
AWAY = Motion(np.eye(3), np.array([0.0, 0.0, 10.0]))


def half_revolution(point) -> list[float]:
    """The 4 x 4 matrix of 180 degrees about a line along z through a point."""
    matrix = np.eye(4)
    matrix[:3, :3] = np.diag([-1.0, -1.0, 1.0])
    matrix[:3, 3] = np.array(point) - matrix[:3, :3] @ np.array(point)
    return matrix.ravel().tolist()


def test_distances_are_those_of_hand_made_cases():
    """A cube of side 2 at distance 10, moved by 1 sideways, then 1 towards the camera."""
    sideways, nearer = (Motion(np.eye(3), np.array(t, float)) for t in ((1, 0, 10), (0, 0, 9)))
    one = [IDENTITY]
    assert mssd(CUBE, sideways, AWAY, one) == add(CUBE, sideways, AWAY) == 1.0
    assert mspd(CUBE, CAMERA, sideways, AWAY, one) == pytest.approx(200 / 9)  # the near face is at 9
    assert mspd(CUBE, CAMERA, nearer, AWAY, one) == pytest.approx(200 * math.sqrt(2) * (1 / 8 - 1 / 9))
    quarter = Motion(Rotation.from_euler("z", 90, degrees=True).as_matrix(), AWAY.t)
    assert add(CUBE, quarter, AWAY) == pytest.approx(2.0)
    assert mssd(CUBE, quarter, AWAY, one) == pytest.approx(2.0)
    assert add_s(CUBE, quarter, AWAY) == pytest.approx(0.0, abs=1e-12)


def test_symmetries_act_about_their_offsets():
    """A pose and the same after a symmetry are equally right; without its offset they would not be."""
    point = (3.0, -1.0, 0.5)
    motions = symmetry_motions({"symmetries_discrete": [half_revolution(point)]})
    truth = Motion(Rotation.random(random_state=0).as_matrix(), np.array([1.0, 2.0, 30.0]))
    other = truth.after(motions[1])
    assert len(motions) == 2
    assert mssd(CUBE, other, truth, motions) == pytest.approx(0.0, abs=1e-9)
    assert mspd(CUBE, CAMERA, other, truth, motions) == pytest.approx(0.0, abs=1e-9)
    without = [IDENTITY, Motion(motions[1].R, np.zeros(3))]
    assert mssd(CUBE, other, truth, without) > 5


def test_continuous_symmetries_are_discretised_by_a_hundredth_of_the_diameter():
    info = {"symmetries_continuous": [{"axis": [0, 0, 2.0], "offset": [1.0, 0.0, 0.0]}]}
    motions = symmetry_motions(info)
    assert len(motions) == 315
    rim = np.array([[1 + np.cos(a), np.sin(a), 0.3] for a in np.linspace(0, 6.28, 50)])  # a disc of diameter 2
    for angle in (0.3, 1.7, 5.0):
        R = Rotation.from_euler("z", angle).as_matrix()
        about = Motion(R, np.array([1.0, 0, 0]) - R @ [1.0, 0, 0])
        assert mssd(rim, AWAY.after(about), AWAY, motions) <= 0.01 * 2 / 2 + 1e-9  # half a step
    both = symmetry_motions(info | {"symmetries_discrete": [half_revolution((1.0, 0.0, 0.0))]})
    assert len(both) == 630
    refused("BOP's format", symmetry_motions, {"symmetries_continuous": [{"offset": [0, 0, 0]}]})


def test_recalls_match_each_instance_once_and_count_the_missed():
    def errors(values) -> np.ndarray:
        array = np.array(values, float).reshape(len(values), -1)
        return np.stack([array, 100 * array, array])

    near = errors([[0.12, 0.9], [0.13, 0.8]])  # both estimates lie at the first instance
    recalls = Recalls.of([near, errors([[0.02]]), np.empty((3, 0, 1))])
    assert recalls.instances == 4
    assert recalls.mssd_20 == 0.5
    assert recalls.add == 0.25
    assert recalls.mssd == pytest.approx((2 * 1 + 8 * 2) / 40)  # of thresholds 0.05 and 0.1 one is right
    assert recalls.mspd == pytest.approx((2 * 1 + 8 * 2) / 40)
    assert Recalls.mean([recalls, Recalls.of([errors([[0.02]])])]).mssd_20 == 0.75


def results_of(scene: Path) -> list[Result]:
    """The truth as a result file would have it."""
    return [
        Result(int(one.scene), one.image, one.object, 0.9, Motion(np.reshape(one.R, (3, 3)), np.array(one.t)), 0.25)
        for one in read_instances(scene)
    ]


def test_result_files_are_read_as_they_were_written(folder, tmp_path):
    truth = results_of(folder / "test" / "000003")
    write_results(truth, tmp_path / "result.csv")
    lines = (tmp_path / "result.csv").read_text().splitlines()
    assert lines[0] == "scene_id,im_id,obj_id,score,R,t,time"
    assert [len(field.split()) for field in lines[1].split(",")] == [1, 1, 1, 1, 9, 3, 1]
    for one, again in zip(truth, read_results(tmp_path / "result.csv"), strict=True):
        assert again[:4] == one[:4]
        np.testing.assert_allclose(again.pose.R, one.pose.R, atol=1e-7)
        np.testing.assert_allclose(again.pose.t, one.pose.t, rtol=1e-7)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("3,0,7,0.5,1 0 0 0 1 0 0 0,0 0 1,0.25", "line 5 .* R nine numbers"),
        ("3,0,7,nan,1 0 0 0 1 0 0 0 1,0 0 1,0.25", "not finite"),
        ("3,0,7,0.5,1 0 0 0 1 0 0 0 1,0 0 1", "line 5"),
        ("3,0,7,0.5,1 0 0 0 1 0 0 0 1,0 0 1,0.75", "another time"),
    ],
)
def test_bad_result_files_get_one_clear_sentence(line, sentence, folder, tmp_path):
    write_results(results_of(folder / "test" / "000003"), tmp_path / "result.csv")
    with open(tmp_path / "result.csv", "a") as file:
        file.write(line + "\n")
    refused(sentence, read_results, tmp_path / "result.csv")


def test_the_truth_has_full_recall_and_what_is_missing_has_none(folder):
    truth = results_of(folder / "test" / "000003")
    assert set(judge(folder, truth)) == {7}
    found = judge(folder, truth)[7]
    assert (found.instances, found.mssd, found.mspd, found.add) == (3, 1.0, 1.0, 1.0)
    off = truth[0]._replace(pose=Motion(truth[0].pose.R, truth[0].pose.t + np.array([0.52 * RADIUS, 0, 0])))
    some = judge(folder, [off, truth[1]])[7]
    assert some.mssd == pytest.approx((5 / 10 + 1) / 3)  # within 0.3 diameters and more; the third is missing
    assert some.add == pytest.approx(1 / 3)
    (folder / "test_targets_bop19.json").write_text('[{"scene_id": 3, "im_id": 1, "obj_id": 7, "inst_count": 1}]')
    assert judge(folder, truth[1:2])[7].mssd == 1.0
    refused("has the objects 7, not 8", judge, folder, truth, objects=[8])


def test_predict_writes_bops_file_and_evaluate_reads_it(folder, tmp_path, prints, refuses):
    save_model(pose_model(), tmp_path / "parts" / "obj_000007")
    out = tmp_path / "result.csv"
    arguments = ["predict", "--bop", folder, "--models", tmp_path / "parts", "--out", out]
    assert "3 poses" in prints(*arguments, "--samples", 100)
    results = read_results(out)
    assert [(one.scene, one.image, one.object) for one in results] == [(3, i, 7) for i in range(3)]
    for one in results:
        assert np.linalg.det(one.pose.R) == pytest.approx(1.0, abs=1e-6)
        assert one.pose.t[2] > 0  # before the camera, in OpenCV's frame
        assert 0 < one.score <= 1
    table = prints("evaluate", "--bop", folder, out).splitlines()
    assert table[0].split()[:2] == ["object", "instances"]
    assert [line.split()[0] for line in table[1:]] == ["7", "mean"]
    boxes = [
        {"scene_id": 3, "image_id": 1, "category_id": k, "bbox": [60, 40, 30, 30], "score": 0.5} for k in (7, 8, 8)
    ]
    (tmp_path / "boxes.json").write_text(json.dumps(boxes))
    assert "no model for obj_000008" in refuses(*arguments, "--samples", 0, "--detections", tmp_path / "boxes.json")
    assert [(one.image, one.score) for one in read_results(out)] == [(1, 0.5)]
