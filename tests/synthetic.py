"""Data from distributions on SO(3) whose density is known, shown as plain colours."""

import numpy as np
import torch
from scipy.spatial.transform import Rotation

from aquamam.data.base import Batch, RotationDataset, UnreadableExample
from aquamam.data.random import uniforms


class Listed(RotationDataset):
    """Given rotations, (n, equivalents, 4) or a list; images say the example's number, and some cannot be read."""

    kind = "listed"

    def __init__(self, rotations, *, group=None, classes=("thing",), broken=(), side: int = 8):
        self.truths, self.group, self.classes, self.broken, self.size = rotations, group, classes, broken, side

    def __len__(self):
        return len(self.truths)

    def label(self, i):
        return self.classes[i % len(self.classes)]

    def image(self, i):
        if i in self.broken:
            raise UnreadableExample(f"image {i} cannot be read; replace it.")
        return np.broadcast_to(np.array([*divmod(i, 256), 0], np.uint8), (self.size, self.size, 3)).copy()

    def rotations(self, i):
        return np.asarray(self.truths[i], np.float64)

    def symmetry(self, label):
        return self.group


def numbers(images: torch.Tensor) -> torch.Tensor:
    """Which examples of a `Listed` these are."""
    return images[:, 0, 0, 0].long() * 256 + images[:, 1, 0, 0]


COLOURS = ((200, 40, 40), (40, 200, 40))


class KnownMixture(RotationDataset):
    r"""Red images: one mode; green images: three. Around each mode $p \propto \exp(\kappa \cos\theta)$, theta the angle
    to it."""

    kind = "synthetic"
    classes = ("one", "three")

    def __init__(self, kappa: float = 4.0, size: int = 8, split: str = "train", length: int | None = None):
        self.kappa, self.side, self.split, self.length = kappa, size, split, length
        self.endless = length is None
        self.modes = (Rotation.random(1, random_state=1), Rotation.random(3, random_state=2))
        self.angles = np.linspace(0, np.pi, 20_001)
        weight = np.exp(kappa * (np.cos(self.angles) - 1)) * (1 - np.cos(self.angles))
        self.cdf = np.concatenate([[0], np.cumsum((weight[1:] + weight[:-1]) / 2)])
        # Haar's angle has density (1 - cos) / pi; with volume pi^2 the constant is pi times the integral
        self.log_constant = -np.log(np.pi * self.cdf[-1] * (self.angles[1] - self.angles[0]))
        self.cdf /= self.cdf[-1]

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("endless")
        return self.length

    @property
    def image_size(self) -> tuple[int, int]:
        return self.side, self.side

    def label(self, i: int) -> str:
        return self.classes[i % 2]

    def image(self, i: int) -> np.ndarray:
        return np.broadcast_to(np.array(COLOURS[i % 2], np.uint8), (self.side, self.side, 3)).copy()

    def rotations(self, i: int) -> np.ndarray:
        return self._draw(np.array([i], np.int64))

    def _draw(self, numbers: np.ndarray) -> np.ndarray:
        u = uniforms(0, self.split, numbers, 4)
        z, turn = 2 * u[:, 0] - 1, 2 * np.pi * u[:, 1]
        axis = np.stack([np.sqrt(1 - z * z) * np.cos(turn), np.sqrt(1 - z * z) * np.sin(turn), z], -1)
        step = Rotation.from_rotvec(np.interp(u[:, 2], self.cdf, self.angles)[:, None] * axis)
        mode = np.where(numbers % 2 == 0, 0, 1 + (u[:, 3] * 3).astype(int))
        every = Rotation.concatenate([*self.modes])
        return (every[mode] * step).as_quat(canonical=True)

    def batch(self, indices, *, unreadable: str = "raise") -> Batch:
        """As the base class's, without a Python loop over examples."""
        if type(self) is not KnownMixture:
            return super().batch(indices, unreadable=unreadable)
        numbers = np.fromiter(indices, np.int64)
        colours = torch.tensor(COLOURS, dtype=torch.uint8)[torch.from_numpy(numbers) % 2]
        return Batch(
            images=colours[:, :, None, None].expand(-1, 3, self.side, self.side).contiguous(),
            rotations=torch.from_numpy(self._draw(numbers))[:, None],
            counts=torch.ones(len(numbers), dtype=torch.int64),
            labels=tuple(self.classes[n % 2] for n in numbers),
            indices=tuple(numbers.tolist()),
        )

    def log_density(self, q: torch.Tensor, kind: int) -> torch.Tensor:
        """The true log density (volume pi^2) of quaternions (n, 4)."""
        modes = torch.from_numpy(self.modes[kind].as_quat())
        cosine = 2 * (q.double()[:, None] * modes).sum(-1).square() - 1  # cos(theta) = 2 (q . m)^2 - 1
        return torch.logsumexp(self.kappa * (cosine - 1), -1) - np.log(len(modes)) + self.log_constant

    def describe(self) -> dict:
        return {"kind": self.kind}
