"""What the bundled models promise, on fresh renders."""

import inspect
import itertools
import sys

import numpy as np
import pytest
import scenes
import torch
from PIL import Image
from scipy.spatial.transform import Rotation
from scipy.stats import kstest

import aquamam
from aquamam.checkpoints.checkpoint import bundled, resolve
from aquamam.cli.evaluate import SEED
from aquamam.data.loaders.photoreal import PhotorealDataset
from aquamam.data.renders import RenderedDataset
from aquamam.evaluation.evaluate import evaluate
from aquamam.fit.part import fresh_renders
from aquamam.geometry.rotations import geodesic_angle, inverse, multiply, quat_to_matrix, rotvec_to_quat
from aquamam.rendering.render import RenderSettings, render
from aquamam.rendering.solids import solid
from aquamam.shape.lookalikes import Lookalikes


def test_die_and_cylinder_come_with_the_package_and_are_small():
    assert {"die", "cylinder", "die-plain", "cylinder-plain", "die-paper", "cylinder-paper", "symsol"} <= set(bundled())
    assert all(resolve(name).stat().st_size < 8e6 for name in bundled())


@pytest.mark.parametrize("name", ["die", "cylinder", "die-plain", "cylinder-plain"])
def test_fresh_renders_are_as_likely_as_the_checkpoint_says(name):
    model = aquamam.load(name)
    promised = model.info["evaluation"]
    drawn = {"seed": SEED + 99, "split": "test", "length": 128}
    plain = RenderedDataset(solid(name.removesuffix("-plain")), RenderSettings(size=64), **drawn)
    data = plain if name.endswith("-plain") else fresh_renders(model, **drawn)
    found = evaluate(model, data, samples=0, strategies=["greedy"], quiet=True)
    error = float(found.columns["log_likelihood"].std()) / 128**0.5
    assert abs(found.figures.mean_log_likelihood - promised["mean_log_likelihood"]) < 4 * error
    assert found.figures.median_error_deg < 2 * promised["median_error_deg"]


def test_the_die_is_right_or_unsure_in_real_light():
    found = evaluate(aquamam.load("die"), PhotorealDataset(size=64), strategies=["greedy"], quiet=True).figures
    assert found.acc15 > 0.9
    assert found.mean_log_likelihood > 7
    assert 0.82 < found.coverage90 < 0.97
    assert 0.82 < found.held90 < 0.97


SYMSOL = ("tet", "cube", "icosa", "cone", "cyl", "tetX", "cylO", "sphereX")


def test_symsol_knows_its_eight_solids_without_being_told_which():
    model = aquamam.load("symsol")
    fresh = {"seed": SEED + 99, "split": "test", "length": 256, "lookalikes": True}
    data = RenderedDataset([solid(name) for name in SYMSOL], RenderSettings(size=64), **fresh)
    found = evaluate(model, data, samples=0, strategies=["greedy"], quiet=True)
    error = float(found.columns["log_likelihood"].std()) / 256**0.5
    promised = model.info["evaluation"]
    assert abs(found.figures.mean_log_likelihood - promised["mean_log_likelihood"]) < 4 * error
    for name in ("tet", "cube", "icosa", "cone", "cyl"):
        assert found.classes[name].median_error_deg < 2 * promised["classes"][name]["median_error_deg"]


def test_a_cube_has_twenty_four_modes(generator):
    image, truth = view("cube", (0.5, 0.6, 0.2))
    q = aquamam.load("symsol")(image).sample((1000,), generator=generator)[:, 0].double()
    modes = solid("cube").symmetry.equivalents(truth)
    angle = torch.rad2deg(geodesic_angle(q[:, None], modes[None]))
    near, which = angle.min(-1)
    assert (near < 15).double().mean() > 0.9
    counts = torch.bincount(which[near < 15], minlength=24)
    assert counts.min() >= 10  # 1,000 / 24 = 42
    assert counts.max() <= 110


def view(name: str, rotation: tuple[float, float, float]) -> tuple[torch.Tensor, torch.Tensor]:
    q = rotvec_to_quat(torch.tensor(rotation, dtype=torch.float64))
    image = render(solid(name).mesh, quat_to_matrix(q).numpy()[None], RenderSettings(size=64))
    return torch.from_numpy(np.ascontiguousarray(image.transpose(0, 3, 1, 2))), q


def test_a_reader_follows_a_likelihood_through_few_files_and_functions():
    model, (image, q), home, visited = aquamam.load("die"), view("die", (0.0, 0.0, 0.3)), aquamam.__path__[0], set()

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_filename.startswith(home):
            visited.add((frame.f_code.co_filename, frame.f_code.co_firstlineno))

    sys.setprofile(note)
    try:
        model(image).log_prob(q)
    finally:
        sys.setprofile(None)
    assert len({file for file, _ in visited}) <= 9
    assert len(visited) <= 55


def test_a_reader_follows_a_prediction_through_few_files(tmp_path, prints):
    home, visited = aquamam.__path__[0], set()
    Image.fromarray(view("die", (0.5, 0.6, 0.2))[0][0].permute(1, 2, 0).numpy()).save(tmp_path / "die.png")

    def note(frame, event, _):
        function = frame.f_code.co_flags & inspect.CO_NEWLOCALS  # bodies of modules and classes are none
        if event == "call" and function and frame.f_code.co_filename.startswith(home):
            visited.add(frame.f_code.co_filename)

    sys.setprofile(note)
    try:
        prints("predict", tmp_path / "die.png")
    finally:
        sys.setprofile(None)
    assert len(visited) <= 14


def test_a_cylinders_samples_are_spread_evenly_along_its_symmetry(generator):
    model = aquamam.load("cylinder-plain")
    group = solid("cylinder").symmetry
    image, truth = view("cylinder", (0.4, 0.2, 0.5))
    q = model(image).sample((1000,), generator=generator)[:, 0].double()
    assert torch.rad2deg(group.distance(q, truth)).median() < 3
    # in the object's own coordinates: a rotation about its axis, or that after a flip
    step = multiply(inverse(truth), q)
    axis = group.axis.double()
    flipped = (quat_to_matrix(step) @ axis) @ axis < 0
    assert 0.4 < flipped.double().mean() < 0.6
    upright = step[~flipped]
    angle = 2 * torch.atan2(upright[:, :3] @ axis, upright[:, 3])
    assert kstest((angle / (2 * torch.pi)).remainder(1).numpy(), "uniform").statistic < 0.12


FACES = {
    "a straight five": (0.0, 0.0, 0.3),
    "a leaning five": (0.06, -0.05, 1.0),
    "a straight four": (0.0, -np.pi / 2, 0.0),
    "a straight six": (-np.pi / 2, 0.0, 0.0),
}


@pytest.mark.parametrize("face", FACES)
def test_a_lone_face_leaves_its_rotations_in_equal_shares_and_hardly_any_else(face, generator):
    """Of 1,000 samples each rotation that gives the picture has its share within five points."""
    model = aquamam.load("die-plain")
    image, truth = view("die", FACES[face])
    known = Lookalikes.of(solid("die").mesh, shape=solid("die").shape)
    (all_,) = known.equivalents(truth.numpy()[None], RenderSettings().distance)
    assert len(all_) == (2 if "six" in face else 4)
    q = model(image).sample((1000,), generator=generator)[:, 0].double()
    near = torch.rad2deg(2 * (q[:, None] * torch.from_numpy(all_)).sum(-1).abs().clamp(max=1).acos()) < 5
    assert near.any(1).double().mean() > (0.97 if "five" in face else 0.9)
    assert bool(((near.double().mean(0) - 1 / len(all_)).abs() < 0.05).all())


def test_shifted_and_scaled_boxes_of_a_picture_give_the_same_pose():
    """Modes of nine boxes about a die agree within a few of the deviations that the posteriors state, and with the
    truth."""
    model, R, t = aquamam.load("die"), Rotation.from_rotvec([0.5, 0.7, 0.2]), np.array([1.5, -0.8, -20.0])
    pixels = scenes.picture(R.as_matrix(), t)
    left, top, width, height = scenes.box_of(pixels)
    boxes = [
        (left + width * (0.5 - scale / 2 + x), top + height * (0.5 - scale / 2 + y), width * scale, height * scale)
        for x, y, scale in itertools.product((-0.08, 0.0, 0.08), (-0.08, 0.08), (0.9, 1.1))
    ]
    found = aquamam.poses(model, Image.fromarray(pixels), boxes, scenes.CAMERA)
    generator = torch.Generator().manual_seed(0)
    for best, *_ in found.hypotheses(300, generator=generator):
        turned = (Rotation.from_quat(best.quaternion) * R.inv()).as_rotvec()
        off = np.concatenate([np.array(best.translation) - t, turned])
        assert best.score > 0.5
        assert np.abs(off[:3] / np.linalg.norm(t)).max() < 0.05
        assert np.degrees(np.linalg.norm(off[3:])) < 10
        assert (np.abs(off) < 4 * np.sqrt(np.diag(best.covariance)) + 0.01).all()
