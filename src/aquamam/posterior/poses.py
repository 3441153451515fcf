r"""Distributions over poses: a rotation and where the part is, given a crop of a picture, its camera and the part's
size.

The network tells the rotation R_crop that the crop shows and the window (a_x, a_y, b) of the part in it. In the
crop's camera, with focal length f and side s in pixels, a part of radius r has its centre at

$$t' = z\,(s\,a_x / f,\; -s\,a_y / f,\; -1), \qquad z = \frac{f\,r}{s\,\rho_0\,e^b}, \qquad
  \left|\frac{\partial t'}{\partial (a, b)}\right| = \frac{s^2 z^3}{f^2},$$

and is turned by $R' = A(t')\,R_{crop}$, A the smallest rotation from the line of sight to the ray through t'. The
crop's camera is the whole picture's, turned: neither turn changes volumes. Densities are with respect to $\pi^2$ for
all rotations times the cubed unit of r.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aquamam.errors import InputError
from aquamam.geometry.camera import NOMINAL, Crop, ray_rotation
from aquamam.geometry.directional import draw_uniform
from aquamam.geometry.rotations import IDENTITY, as_unit_quat, inverse, inverse_cdf, multiply, rotate
from aquamam.posterior import windows
from aquamam.posterior.distribution import Generator, RotationDistribution
from aquamam.posterior.hypotheses import Hypothesis, find_hypotheses
from aquamam.posterior.regions import density_pit
from aquamam.posterior.sentences import QuaternionSentences


class Pose(NamedTuple):
    """x_cam = R x_obj + t, camera coordinates x right, y up, z towards the viewer; R as xyzw quaternions."""

    rotation: Float[Tensor, "*batch 4"]
    translation: Float[Tensor, "*batch 3"]

    def moved(self, by: "Pose") -> "Pose":
        """The pose in other coordinates, x_new = R x + t."""
        rotation, translation = by.rotation.double(), by.translation.double()
        there = rotate(rotation, self.translation.double()) + translation
        return Pose(multiply(rotation, self.rotation.double()), there)

    def undone(self) -> "Pose":
        """The inverse change of coordinates."""
        back = inverse(self.rotation.double())
        return Pose(back, -rotate(back, self.translation.double()))


class CropFrames:
    """The change of variables between what crops of a part show, rotations and windows, and poses."""

    def __init__(self, crops: Sequence[Crop], *, radius: float, centre: Sequence[float] = (0.0, 0.0, 0.0)):
        """radius, centre: of the part, in the unit and coordinates of its mesh's file."""
        self.turn = torch.stack([crop.turn for crop in crops]) if crops else torch.zeros(0, 4, dtype=torch.float64)
        self.share = torch.tensor([crop.side / crop.focal for crop in crops], dtype=torch.float64)  # s / f
        self.radius, self.centre = radius, torch.tensor(centre, dtype=torch.float64)

    def to_pose(self, q: Float[Tensor, "*sample batch 4"], window: Float[Tensor, "*sample batch 3"]) -> Pose:
        """The pose of a crop's rotation and window."""
        q, window = q.cpu().double(), window.cpu().double()
        z = self.depth(window)
        flat = torch.stack([window[..., 0] * self.share, -window[..., 1] * self.share, -torch.ones_like(z)], -1)
        there = z[..., None] * flat
        rotation = multiply(self.turn, multiply(ray_rotation(there), q))
        return Pose(rotation, rotate(self.turn, there) - rotate(rotation, self.centre))

    def depth(self, window: Float[Tensor, "*sample batch 3"]) -> Float[Tensor, "*sample batch"]:
        """z, how far away the part is."""
        return self.radius / (self.share * NOMINAL * window[..., 2].exp())

    def to_window(self, pose: Pose) -> tuple[Float[Tensor, "*sample batch 4"], Float[Tensor, "*sample batch 3"]]:
        """The inverse of `to_pose`; parts behind the crop's camera have windows that are not finite."""
        rotation, translation = pose.rotation.cpu().double(), pose.translation.cpu().double()
        there = rotate(inverse(self.turn), translation + rotate(rotation, self.centre))
        q = multiply(inverse(ray_rotation(there)), multiply(inverse(self.turn), rotation))
        z = torch.where(there[..., 2] < 0, -there[..., 2], torch.nan)
        a = there[..., :2] / (z * self.share)[..., None] * there.new_tensor([1.0, -1.0])
        b = torch.log(self.radius / (self.share * NOMINAL * z))
        return q, torch.cat([a, b[..., None]], -1)


class PoseDistribution(CropFrames):
    """A batch of distributions over poses, one a crop."""

    def __init__(
        self,
        rotation: RotationDistribution,
        crops: Sequence[Crop],
        *,
        radius: float,
        centre: Sequence[float] = (0.0, 0.0, 0.0),
    ):
        """rotation: of the crops, by a model with `pose`. radius, centre: of the part, in the unit and coordinates of
        its mesh's file.
        """
        super().__init__(crops, radius=radius, centre=centre)
        sentences = rotation.unwrapped
        if not isinstance(sentences, QuaternionSentences):
            raise InputError("only models with bins tell poses; fit the part anew, or load a model that does.")
        self.rotation, self.sentences = rotation, sentences
        self.batch_shape = rotation.batch_shape

    def log_prob(self, pose: Pose) -> Float[Tensor, "*sample batch"]:
        """Log density per pi^2 and cubed unit of the part's radius; -inf where no window of the network's range shows
        the pose.
        """
        q, window = self.to_window(Pose(as_unit_quat(pose.rotation), pose.translation))
        inside = windows.inside(window)
        q = torch.where(inside[..., None], q, IDENTITY)  # straight behind the camera q is zero
        window = torch.where(inside[..., None], window, torch.zeros_like(window))
        shape = q.shape[:-1]
        q, window = q.reshape(-1, shape[-1], 4), window.reshape(-1, shape[-1], 3)
        there = self.sentences.first_log_probs().device
        with torch.no_grad():
            log_p = self.rotation.log_prob(q.to(there)) + self._window_log_prob(q.to(there), window.to(there))
        log_p = log_p.cpu().double()
        log_p = log_p - (2 * self.share.log() + 3 * self.depth(window).log())
        return torch.where(inside, log_p.reshape(shape), -torch.inf)

    def _window_log_prob(self, q: Tensor, window: Tensor) -> Float[Tensor, "rotations batch"]:
        """Log density of windows given the rotations, per unit of (a_x, a_y, b)."""
        cells, point = self.sentences.cells, self.sentences.cells.chart.split(q)
        log_p = self.sentences.later_logits(point, cells.locate(point), window)[..., 2:, :].log_softmax(-1)
        place = windows.locate(window, cells.bins)[..., None]
        return log_p.gather(-1, place).squeeze(-1).double().sum(-1) - windows.log_volume(cells.bins)

    def sample(self, count: int = 1, *, generator: Generator = None) -> Pose:
        """Draws, (count, batch, ...)."""

        def draw(logits: Tensor) -> Tensor:
            u = draw_uniform((*logits.shape[:-1], 1), generator, logits.device)
            return inverse_cdf(logits.softmax(-1), u).squeeze(-1)

        with torch.no_grad():
            q = self.rotation.sample((count,), generator=generator)
            place = self._window(q, draw)
        u = draw_uniform(place.shape, generator, place.device)
        return self.to_pose(q, windows.value(place.double() + u, self.sentences.cells.bins))

    @property
    def mode(self) -> Pose:
        """The greedy prediction: the rotation's, then the likeliest window token by token."""
        return self.at(self.rotation.mode)

    def at(self, q: Float[Tensor, "batch 4"]) -> Pose:
        """The poses of rotations that the crops show (xyzw), with the likeliest window token by token."""
        with torch.no_grad():
            place = self._window(q[None].to(self.sentences.first_log_probs().device), lambda logits: logits.argmax(-1))
        return self.to_pose(q, windows.value(place[0].double() + 0.5, self.sentences.cells.bins))

    def _window(self, q: Float[Tensor, "rotations batch 4"], choose: Callable[[Tensor], Tensor]) -> Tensor:
        """Bins of the window given rotations, one token after the other."""
        cells, point = self.sentences.cells, self.sentences.cells.chart.split(q)
        seen = cells.seen(point.u, cells.locate(point)).float()
        past: tuple[Tensor, ...] = ()
        chosen: list[Tensor] = []
        while len(chosen) < 3:
            logits, past = self.sentences.conditionals.rest(point.chart, seen, past)
            chosen.append(choose(logits[..., -1, :].float()))
            seen = windows.centre(chosen[-1], cells.bins)[..., None]
        return torch.stack(chosen, -1)

    def hypotheses(self, samples: int = 1000, *, generator: Generator = None) -> list[list[Hypothesis]]:
        """For each picture the modes of its rotations, each a pose with its share and its covariance, best first."""
        each = zip(*(value.unbind(1) for value in self.sample(samples, generator=generator)))
        return [find_hypotheses(q, t, self.centre) for q, t in each]

    def region_score(self, pose: Pose, samples: int = 200, *, generator: Generator = None) -> Float[Tensor, "batch"]:
        """The share of the distribution that is likelier than each pose: at most 0.9 for nine truths of ten if it is
        calibrated."""
        drawn = self.log_prob(self.sample(samples, generator=generator))
        u = draw_uniform(tuple(self.batch_shape), generator, drawn.device)
        return density_pit(self.log_prob(pose), drawn, u)

    def contains(self, pose: Pose, level: float = 0.9, *, generator: Generator = None) -> Bool[Tensor, "batch"]:
        """Whether poses belong to the highest-density regions of a level."""
        return self.region_score(pose, generator=generator) <= level
