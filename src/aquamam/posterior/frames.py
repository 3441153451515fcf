"""A posterior over rotations in another frame of the camera."""

from typing import Any

from jaxtyping import Float
from torch import Tensor

from aquamam.errors import require
from aquamam.geometry.rotations import inverse, multiply
from aquamam.posterior.distribution import Densities, Generator, Images, RotationDistribution, Rotations, TopK, Wrapped

FRAMES = ("opengl", "opencv")  # x right, y up, z towards the viewer (ours); x right, y down, z forward


def check_frame(frame: str) -> str:
    """A frame's name, if it is one."""
    require(frame in FRAMES, f"a camera's frame is {' or '.join(FRAMES)}, got {frame!r}.")
    return frame


class Rotated(Wrapped):
    """The distribution of A R for R of the inner one; a rotation A of the camera leaves volumes as they are."""

    def __init__(self, inner: RotationDistribution, by: Float[Tensor, "batch 4"]):
        super().__init__(inner)
        self.by = by

    def _back(self, q: Tensor) -> Tensor:
        return multiply(inverse(self.by.to(q)), q)

    def _there(self, q: Tensor) -> Tensor:
        return multiply(self.by.to(q.device), q.double()).to(q.dtype)

    def _log_prob(self, q: Rotations) -> Densities:
        return self.inner._log_prob(self._back(q))

    def _sample(self, count: int, generator: Generator) -> Rotations:
        return self._there(self.inner._sample(count, generator))

    def _mode(self) -> Float[Tensor, "batch 4"]:
        return self._there(self.inner._mode())

    def _topk(self, k: int) -> TopK:
        q, log_p = self.inner._topk(k)
        return TopK(self._there(q), log_p)

    def _cell(self, q: Tensor) -> Any:
        return self.inner._cell(self._back(q))

    def _some(self, images: Images) -> "Rotated":
        return Rotated(self.inner._some(images), self.by[images])
