"""Products of posteriors over frames and cameras, and answers that stay with one of several equivalent poses."""

import math
import warnings

import pytest
import torch
from binghams import bingham_posterior, cylinder, four_fives, turns
from refusals import refused
from tables import table_posterior
from torch import Tensor

import aquamam
from aquamam.baselines.classification import CellProbabilities
from aquamam.geometry.cells import Cells
from aquamam.geometry.directional import log_bingham_constant
from aquamam.geometry.grid import grid_size, so3_grid
from aquamam.geometry.rotations import (
    LOG_UNIFORM,
    geodesic_angle,
    inverse,
    multiply,
    quat_to_rotvec,
    random_quat,
    rotvec_to_quat,
)
from aquamam.posterior.fusion import FusionWarning, fuse
from aquamam.posterior.poses import Pose
from aquamam.posterior.tracking import PoseTracker, Tracker, fuse_poses
from examples.rotating_die import rotating_die

STILL = torch.tensor([0.0, 0, 0, 1], dtype=torch.float64)
GRID = so3_grid(3)


def about(axis: tuple[float, float, float], degrees: float) -> Tensor:
    return rotvec_to_quat(math.radians(degrees) * torch.tensor(axis, dtype=torch.float64))


def log_product(posteriors, relative) -> Tensor:
    """Log of the product with respect to the uniform density, on the grid."""
    parts = [p.log_prob(multiply(d, GRID)[:, None])[:, 0] - LOG_UNIFORM for p, d in zip(posteriors, relative)]
    return torch.stack(parts).double().sum(0)


def broad(generator, frames: int = 3):
    """Frames whose posteriors and product the grid resolves: modes of 15 to 30 degrees."""
    return [
        bingham_posterior(random_quat((2,), generator=generator), [15.0 + 5 * i, 30.0], [1.0, 2.0])
        for i in range(frames)
    ]


def tables(frames: int = 3, batch: int = 1, scale: float = 1.5):
    return [table_posterior(Cells("atlas", 5), batch=batch, scale=scale, seed=seed) for seed in range(frames)]


# --- the product ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bingham", "cells"])
def test_a_product_is_what_quadrature_on_the_grid_says(kind, generator):
    frames = broad(generator) if kind == "bingham" else tables(2, scale=0.5)
    relative = random_quat((len(frames),), generator=generator, dtype=torch.float64)
    fused = fuse(frames, relative, generator=generator)
    log_p = log_product(frames, relative)
    log_z = log_p.logsumexp(0) - math.log(len(GRID))
    share = log_p.softmax(0)
    # the grid has an error too: cells have edges, and slivers hold probability that it seldom meets
    grid_error = 0.0 if kind == "bingham" else float(share.square().sum().sqrt())
    error = float(fused.agreement.standard_error)
    assert error < 0.06
    assert float(fused.agreement.value) == pytest.approx(float(log_z), abs=4 * math.hypot(error, grid_error))
    shift = fused.log_prob(GRID[:500, None])[:, 0] - log_p[:500]
    torch.testing.assert_close(shift, shift[:1].expand(500), atol=1e-4, rtol=0)  # exact but for the constant
    entropy, spread = fused.entropy()
    exact = -(share * (log_p - log_z + LOG_UNIFORM)).sum()
    assert float(entropy) == pytest.approx(float(exact), abs=4 * math.hypot(float(spread), grid_error))


def test_sharp_frames_that_differ_a_little_give_the_bingham_product(generator):
    # one mode of half a degree in each frame, 1.5 degrees apart: too sharp for any grid, and known in closed form
    scale = -2 / math.radians(0.5) ** 2
    centres = multiply(
        random_quat((1,), generator=generator, dtype=torch.float64), rotvec_to_quat(0.02 * torch.eye(3).double())
    )
    relative = random_quat((3,), generator=generator, dtype=torch.float64)
    frames = [bingham_posterior(multiply(d, c)[None], [0.5]) for d, c in zip(relative, centres)]
    fused = fuse(frames, relative, generator=generator)
    quadric = scale * (3 * torch.eye(4).double() - centres.T @ centres)
    each = math.log(2) - log_bingham_constant(torch.tensor([scale] * 3 + [0.0]).double())
    log_z = 3 * each - 2 * LOG_UNIFORM + log_bingham_constant(torch.linalg.eigvalsh(quadric)) - math.log(2)
    error = float(fused.agreement.standard_error)
    assert error < 0.06
    assert float(fused.agreement.value) == pytest.approx(float(log_z), abs=4 * error)
    top = torch.linalg.eigh(quadric)[1][:, -1]
    assert float(geodesic_angle(fused.mode[0].double(), top)) < math.radians(0.15)


def test_one_posterior_fused_is_itself(generator):
    for posterior in (four_fives(), *tables(1)):
        fused = fuse([posterior], generator=generator)
        q = random_quat((50, 1), generator=generator, dtype=torch.float64)
        torch.testing.assert_close(fused.log_prob(q), posterior.log_prob(q), atol=1e-5, rtol=0)
        assert fused.agreement.standard_error.item() < 1e-6


def test_a_weight_is_an_exponent(generator):
    frames = broad(generator, 2)
    fused = fuse(frames, weights=[0.5, 0], generator=generator)
    q = random_quat((100, 1), generator=generator, dtype=torch.float64)
    shift = fused.log_prob(q) - 0.5 * frames[0].log_prob(q)
    torch.testing.assert_close(shift, shift[:1].expand_as(shift), atol=1e-5, rtol=0)


def test_a_batch_is_fused_object_by_object(generator):
    frames, relative = tables(2, batch=2), random_quat((2, 2), generator=generator, dtype=torch.float64)
    fused = fuse(frames, relative, generator=generator)
    q = random_quat((20, 2), generator=generator, dtype=torch.float64)
    expected = sum(p.log_prob(multiply(d, q)) - LOG_UNIFORM for p, d in zip(frames, relative)) + LOG_UNIFORM
    torch.testing.assert_close(fused.log_prob(q) + fused.agreement.value, expected, atol=1e-4, rtol=0)
    assert fused.votes.shape == (2, 2)
    assert fused.predict("beam").shape == (2, 4)
    assert fused.expand((7, 2)).entropy().value.shape == (7, 2)


def test_a_posterior_of_many_images_is_fused_over_them(generator):
    stacked, relative = tables(1, batch=2)[0], random_quat((2,), generator=generator, dtype=torch.float64)
    fused = fuse(stacked, relative, generator=generator)
    q = random_quat((20, 1), generator=generator, dtype=torch.float64)
    expected = (stacked.log_prob(multiply(relative, q)) - LOG_UNIFORM).sum(-1, keepdim=True) + LOG_UNIFORM
    torch.testing.assert_close(fused.log_prob(q) + fused.agreement.value, expected, atol=1e-4, rtol=0)


def test_samples_follow_the_density(generator):
    frames, relative = tables(2, scale=1.0), random_quat((2,), generator=generator, dtype=torch.float64)
    fused = fuse(frames, relative, generator=generator)
    share = log_product(frames, relative).softmax(0)
    q = fused.sample((2000,), generator=generator)[:, 0].double()
    # second moments of quaternions tell place and widths; errors of 2,000 draws that repeat some points
    found, expected = q.T @ q / len(q), GRID.T @ (share[:, None] * GRID)
    torch.testing.assert_close(found, expected, atol=0.05, rtol=0)
    surprise = -fused.log_prob(q[:, None])
    assert float(surprise.mean()) == pytest.approx(float(fused.entropy().value), abs=0.1)


def test_places_of_topk_are_the_modes_with_their_shares(generator):
    fused = fuse([bingham_posterior(turns(3), [1.0] * 3, [5.0, 3.0, 2.0])] * 2, weights=[0.5, 0.5], generator=generator)
    best = fused.topk(3)
    angle = torch.rad2deg(geodesic_angle(best.quaternions[:, 0].double(), turns(3)))
    assert float(angle.max()) < 0.5
    torch.testing.assert_close(best.log_probs[:, 0].exp(), torch.tensor([0.5, 0.3, 0.2]).double(), atol=0.06, rtol=0)


# --- what it says of itself -------------------------------------------------------------------------------------------


def test_contradictory_frames_are_flagged_and_named(generator):
    frames = [four_fives(), four_fives(), bingham_posterior(about((1, 1, 0), 50)[None], [3.0])]
    with pytest.warns(FusionWarning, match=r"contradict each other .*frame 2"):
        fused = fuse(frames, generator=generator)
    assert bool(fused.contradictory)
    assert not bool(fused.reliable)
    refused("contradict", fuse, frames, conflict="raise", generator=generator)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fuse(frames, conflict="keep", generator=generator)
        fuse(frames[:2], generator=generator)


def test_frames_that_exclude_each_other_are_refused(generator):
    only = torch.full((2, grid_size(0)), -torch.inf)
    only[0, 3] = only[1, 40] = 0
    refused("leave none", fuse, [CellProbabilities(only[:1], 0), CellProbabilities(only[1:], 0)], generator=generator)


def test_the_stated_error_is_the_error(generator):
    # twenty repetitions of a product that needs kernels; their scatter is what each of them says
    frames = [bingham_posterior(about((0, 0, 1), a)[None], [2.0]) for a in (0.0, 6.0)]
    runs = [fuse(frames, samples=300, conflict="keep", generator=generator) for _ in range(20)]
    scatter = float(torch.stack([r.agreement.value for r in runs]).std())
    said = float(torch.stack([r.agreement.standard_error for r in runs]).mean())
    assert 0.5 < scatter / said < 1.6


def test_turning_the_die_makes_the_posterior_surer():
    # a face alone, and after a quarter turn another one: each fits several rotations, both together fewer
    first, second = rotating_die(aquamam.load("die-plain"), (0, 90), draws=100, samples=300)
    assert second.entropy[1] < min(first.entropy[0], second.entropy[0]) - 0.5


# --- the tracker ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [0, 1.5])
def test_the_tracker_does_not_jump_between_four_equivalent_poses(noise, generator):
    # each frame prefers another of the four poses, as an uneven model does
    step, truth = about((0.2, 1.0, 0.1), 7), random_quat((), generator=generator, dtype=torch.float64)
    tracker = Tracker(motion_noise_deg=noise, samples=200, generator=generator)
    answers, alone = [], []
    for i in range(5):
        now = truth
        for _ in range(i):
            now = multiply(step, now)
        weights = [2.0 if (3 * i) % 4 == k else 1.0 for k in range(4)]
        posterior = bingham_posterior(multiply(now, turns(4)), [2.0] * 4, weights)
        if i:
            tracker.predict(step)
        answers.append(multiply(inverse(now), tracker.update(posterior)[0].double()))
        alone.append(multiply(inverse(now), posterior.mode[0].double()))
        assert not bool(tracker.jumped)
    still = torch.rad2deg(geodesic_angle(torch.stack(answers), answers[0]))
    assert float(still.max()) < 3
    assert float(torch.rad2deg(geodesic_angle(torch.stack(alone), alone[0])).max()) > 80  # each frame by itself does


@pytest.mark.parametrize(("belief", "frames"), [(four_fives(), 1), (bingham_posterior(STILL[None], [2.0]), 2)])
def test_the_tracker_leaves_a_pose_that_has_clearly_lost_and_finds_back_from_a_wrong_belief(belief, frames, generator):
    tracker = Tracker(samples=200, generator=generator)
    first = tracker.update(belief)[0].double()
    other, jumped = turns(4)[geodesic_angle(turns(4), first).argmax()], False
    for _ in range(frames):
        tracker.predict()
        answer = tracker.update(bingham_posterior(other[None], [2.0]))[0].double()
        jumped |= bool(tracker.jumped)
    assert float(torch.rad2deg(geodesic_angle(answer, other))) < 2
    assert jumped


@pytest.mark.parametrize("seed", range(4))
def test_the_tracker_keeps_its_place_on_a_curve_of_equal_poses(seed):
    tracker = Tracker(samples=300, generator=torch.Generator().manual_seed(seed))
    before = tracker.update(cylinder())[0].double()
    for _ in range(3):
        tracker.predict()
        tracker.update(cylinder())
        assert not bool(tracker.jumped)
    assert float(torch.rad2deg(geodesic_angle(tracker.answer[0].double(), before))) < 40


DOUBLE = torch.float64


class Gaussian:
    """Poses about one, with a deviation of the rotation vector and one for each axis of the translation."""

    centre = torch.zeros(3, dtype=DOUBLE)

    def __init__(self, pose: Pose, turn: float, shift: tuple[float, float, float]):
        self.pose, self.turn, self.shift = pose, turn, torch.tensor(shift, dtype=DOUBLE)

    def sample(self, count=1, *, generator=None):
        turn, shift = (torch.randn(count, 1, 3, generator=generator, dtype=DOUBLE) for _ in range(2))
        rotation = multiply(rotvec_to_quat(self.turn * turn), self.pose.rotation)
        return Pose(rotation, self.pose.translation + self.shift * shift)

    def log_prob(self, pose):
        turn = quat_to_rotvec(multiply(pose.rotation, inverse(self.pose.rotation))) / self.turn
        shift = (pose.translation - self.pose.translation) / self.shift
        norm = 3 * math.log(math.tau) + 3 * math.log(self.turn / 2) + self.shift.log().sum()
        return -0.5 * (turn.square().sum(-1) + shift.square().sum(-1)) - norm


@pytest.fixture
def truth(generator):
    there = torch.tensor([[0.1, -0.2, -3.0]], dtype=DOUBLE)
    return Pose(random_quat((1,), generator=generator, dtype=DOUBLE), there)


def test_a_change_of_coordinates_is_undone(truth, generator):
    by = Pose(random_quat((), generator=generator, dtype=DOUBLE), torch.tensor([1.0, 2.0, 3.0], dtype=DOUBLE))
    back = truth.moved(by).moved(by.undone())
    assert float(geodesic_angle(back.rotation, truth.rotation)) < 1e-7
    torch.testing.assert_close(back.translation, truth.translation)


def test_two_cameras_give_the_product_of_their_gaussians(truth, generator):
    """One sees sideways what the other sees along its line of sight: together they know both well."""
    turn = rotvec_to_quat(torch.tensor([0.0, math.pi / 2, 0.0], dtype=DOUBLE))
    other = Pose(turn, torch.tensor([0.5, 0.0, -2.0], dtype=DOUBLE))
    first = Gaussian(truth, 0.05, (0.02, 0.02, 0.1))
    second = Gaussian(truth.moved(other), 0.05, (0.02, 0.02, 0.1))
    fused = fuse_poses(
        [first, second], [Pose(STILL, torch.zeros(3, dtype=DOUBLE)), other], samples=8000, generator=generator
    )
    drawn = fused.sample(8000, generator=generator)
    off = drawn.translation[:, 0] - truth.translation[0]
    narrow = 1 / math.sqrt(0.02**-2 + 0.1**-2)
    expected = torch.tensor([narrow, 0.02 / math.sqrt(2), narrow], dtype=DOUBLE)
    torch.testing.assert_close(off.std(0), expected, rtol=0.1, atol=0)
    assert float(off.mean(0).abs().max()) < 0.003
    turned = quat_to_rotvec(multiply(drawn.rotation[:, 0], inverse(truth.rotation[0])))
    torch.testing.assert_close(turned.std(0), torch.full((3,), 0.05 / math.sqrt(2), dtype=DOUBLE), rtol=0.1, atol=0)
    assert float(fused.effective) > 300
    best = fused.hypotheses(generator=generator)[0][0]
    assert best.translation == pytest.approx(truth.translation[0].tolist(), abs=0.01)


def test_pictures_of_different_places_contradict_each_other(truth, generator):
    far = Pose(truth.rotation, truth.translation + 1e6)
    fused = fuse_poses([Gaussian(truth, 0.01, (0.01,) * 3), Gaussian(far, 0.01, (0.01,) * 3)], generator=generator)
    assert float(fused.effective) < 20 or bool(fused.contradictory)
    refused("its camera", fuse_poses, [Gaussian(truth, 0.1, (0.1,) * 3)], [truth, truth])


def test_a_tracker_follows_a_moving_part_better_than_single_pictures_see_it(truth, generator):
    tracker = PoseTracker(noise_deg=1, noise=0.01, generator=generator)
    motion = Pose(
        rotvec_to_quat(torch.tensor([0.0, 0.1, 0.0], dtype=DOUBLE)), torch.tensor([0.05, 0.0, 0.0], dtype=DOUBLE)
    )
    single, followed = [], []
    for _ in range(12):
        truth = truth.moved(motion)
        seen = Gaussian(truth, 0.15, (0.03, 0.03, 0.2))
        seen.pose = Pose(*(value[0] for value in seen.sample(generator=generator)))  # off by its own error
        tracker.predict(motion)
        belief = tracker.update(seen)
        mean = (belief.weights[..., None] * belief.pose.translation).sum(0)
        single.append(float((seen.pose.translation - truth.translation).norm()))
        followed.append(float((mean - truth.translation).norm()))
    assert sum(followed[4:]) < 0.7 * sum(single[4:])
