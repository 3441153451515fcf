"""Poses of several pictures: the product of what each says, whatever the cameras, and a part that is followed."""

import math

import pytest
import torch

import aquamam
from aquamam.errors import InputError
from aquamam.geometry.rotations import geodesic_angle, inverse, multiply, quat_to_rotvec, random_quat, rotvec_to_quat
from aquamam.posterior.pose_fusion import PoseTracker, fuse_poses, moved, undone
from aquamam.posterior.poses import Pose

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
    back = moved(moved(truth, by), undone(by))
    assert float(geodesic_angle(back.rotation, truth.rotation)) < 1e-7
    torch.testing.assert_close(back.translation, truth.translation)


def test_two_cameras_give_the_product_of_their_gaussians(truth, generator):
    """One sees sideways what the other sees along its line of sight: together they know both well."""
    turn = rotvec_to_quat(torch.tensor([0.0, math.pi / 2, 0.0], dtype=DOUBLE))
    other = Pose(turn, torch.tensor([0.5, 0.0, -2.0], dtype=DOUBLE))
    first = Gaussian(truth, 0.05, (0.02, 0.02, 0.1))
    second = Gaussian(moved(truth, other), 0.05, (0.02, 0.02, 0.1))
    still = Pose(torch.tensor([0.0, 0, 0, 1], dtype=DOUBLE), torch.zeros(3, dtype=DOUBLE))
    fused = fuse_poses([first, second], [still, other], samples=8000, generator=generator)
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


def test_a_tracker_follows_a_moving_part_better_than_single_pictures_see_it(truth, generator):
    tracker = PoseTracker(noise_deg=1, noise=0.01, generator=generator)
    motion = Pose(
        rotvec_to_quat(torch.tensor([0.0, 0.1, 0.0], dtype=DOUBLE)), torch.tensor([0.05, 0.0, 0.0], dtype=DOUBLE)
    )
    single, followed = [], []
    for _ in range(12):
        truth = moved(truth, motion)
        seen = Gaussian(truth, 0.15, (0.03, 0.03, 0.2))
        seen.pose = Pose(*(value[0] for value in seen.sample(generator=generator)))  # off by its own error
        tracker.predict(motion)
        belief = tracker.update(seen)
        mean = (belief.weights[..., None] * belief.pose.translation).sum(0)
        single.append(float((seen.pose.translation - truth.translation).norm()))
        followed.append(float((mean - truth.translation).norm()))
    assert sum(followed[4:]) < 0.7 * sum(single[4:])


def test_bad_input_is_told_in_one_sentence(truth):
    with pytest.raises(InputError, match="at least one"):
        aquamam.fuse_poses([])
    with pytest.raises(InputError, match="its camera"):
        fuse_poses([Gaussian(truth, 0.1, (0.1,) * 3)], [truth, truth])
    with pytest.raises(InputError, match="noise"):
        aquamam.PoseTracker(noise_deg=0, noise=1)
