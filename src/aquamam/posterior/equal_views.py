r"""Equal shares for rotations that are indistinguishable in an image.

A network learns that the four quarter turns of a lone five are equally likely, but only roughly. What the object's shape and paint say
about it is exact: which rotations R' give the picture of R does not depend on the network. These classes divide all rotations, and

$$\bar p(R) = \frac{1}{|C(R)|} \sum_{R' \in C(R)} p(R')$$

is as well normalised as p, since each $R \mapsto R g$ keeps volumes. Its samples are those of p, each replaced by one of its class at
random. Predictions stay those of p.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from aquamam.errors import InputError
from aquamam.geometry.rotations import as_unit_quat, canonical, inverse, multiply, rotate
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.posterior.distribution import RotationDistribution, TopK, Wrapped
from aquamam.posterior.sentences import QuaternionSentences


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewClasses:
    """Which rotations g of an object give the same picture of R and R g, and the planes whose sight tells them apart.

    g changes the picture of R if the camera is in front of one of the planes that g repaints.
    """

    elements: Float[Tensor, "g 4"]  # a group, xyzw, the identity first
    planes: Float[Tensor, "p 4"]  # normals and heights in the object's frame
    changed: Bool[Tensor, "_ _"]  # which element repaints which plane
    distance: float  # of the camera from the object's origin

    def __post_init__(self) -> None:
        group = SymmetryGroup(elements=self.elements)  # which checks that it is one
        if self.changed.shape != (len(self.elements), len(self.planes)) or bool(self.changed[0].any()):
            raise InputError(
                "view classes need a mark for each element and plane, none of them for the identity, got "
                f"{len(self.elements)} elements, {len(self.planes)} planes and marks {tuple(self.changed.shape)}."
            )
        object.__setattr__(self, "elements", group.elements)
        products = multiply(group.elements[:, None], group.elements)
        object.__setattr__(self, "_product", (products @ group.elements.mT).abs().argmax(-1))

    # --- what it is for -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def members(self, q: Float[Tensor, "*shape 4"]) -> Bool[Tensor, "*shape g"]:
        """Which elements g of each rotation q (xyzw) give q g, a rotation of its class; the identity always does."""
        flat = q.reshape(-1, 4)
        same = self._same(self._eye(flat))
        several = same.sum(-1) > 1
        same[several] = self._agreed(flat[several], same[several])
        return same.reshape(*q.shape[:-1], len(self.elements))

    def draw(self, q: Float[Tensor, "*shape 4"], generator: torch.Generator | None = None) -> Float[Tensor, "*shape 4"]:
        """One of the class of each rotation, all equally likely."""
        member = self.members(q)
        u = torch.rand(q.shape[:-1], generator=generator, dtype=torch.float64, device=q.device)
        rank = (u * member.sum(-1)).long()[..., None]
        which = (member.cumsum(-1) <= rank).sum(-1)
        return canonical(multiply(q, self.elements.to(q)[which]))

    def _eye(self, q: Float[Tensor, "n 4"]) -> Float[Tensor, "n 3"]:
        """The camera in the object's frame."""
        return rotate(inverse(q.double()), q.new_tensor([0.0, 0.0, self.distance], dtype=torch.float64))

    def _same(self, eye: Float[Tensor, "*shape 3"]) -> Bool[Tensor, "*shape g"]:
        planes = self.planes.to(eye)
        shown = eye @ planes[:, :3].mT > planes[:, 3]
        return shown.float() @ self.changed.to(eye.device).float().mT == 0

    def _agreed(self, q: Float[Tensor, "n 4"], same: Bool[Tensor, "n g"]) -> Bool[Tensor, "n g"]:
        """The classes on which all their members agree; others are left with one member each.

        On a polyhedron all do. Where round paint is known by some points only, a view at the edge of one may not.
        """
        elements = self.elements.to(q.device)
        theirs = self._same(
            rotate(inverse(elements), self._eye(q)[:, None])
        )  # (n, g, h): whether q g and q g h are indistinguishable
        product = self._product.to(q.device)  # type: ignore[attr-defined]
        mine = same[:, product]  # (n, g, h): whether q and q g h do
        agreed = ((theirs == mine).all(-1) | ~same).all(-1)
        alone = torch.zeros_like(same)
        alone[:, 0] = True
        return torch.where(agreed[:, None], same, alone)

    # --- files --------------------------------------------------------------------------------------------------------

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return {
            "turns": self.elements.tolist(),
            "planes": self.planes.tolist(),
            "changed": ["".join("01"[int(mark)] for mark in row) for row in self.changed],
            "distance": self.distance,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ViewClasses":
        """The inverse of `to_dict`."""
        try:
            turns = as_unit_quat(data["turns"], "turns")
            planes = torch.tensor(data["planes"], dtype=torch.float64).reshape(-1, 4)
            changed = torch.tensor([[mark == "1" for mark in row] for row in data["changed"]], dtype=torch.bool)
            distance = float(data["distance"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"view classes must hold turns, planes, changed and distance, got {data!r:.60}; make the checkpoint again."
            ) from error
        return cls(elements=turns, planes=planes, changed=changed, distance=distance)


class EqualViews(Wrapped):
    """A posterior in which indistinguishable rotations share their probability equally."""

    def __init__(self, inner: RotationDistribution, classes: ViewClasses):
        super().__init__(inner)
        self.classes = classes

    def _log_prob(self, q: Float[Tensor, "rotations batch 4"]) -> Float[Tensor, "rotations batch"]:
        """The mean of the inner density over the class of each rotation."""
        log_p = self.inner._log_prob(q)
        member = self.classes.members(q)
        image, row, element = member[..., 1:].transpose(0, 1).nonzero(as_tuple=True)
        if not len(image):
            return log_p
        # the others of all classes, image by image; images with fewer than others repeat some
        images, column, counts = image.unique_consecutive(return_inverse=True, return_counts=True)
        place = torch.arange(len(image), device=q.device) - (counts.cumsum(0) - counts)[column]
        others = q[:1, images].repeat(int(counts.max()), 1, 1)
        others[place, column] = multiply(q[row, image], self.classes.elements.to(q)[element + 1])
        others_log_p = self.inner._some(images)._in_chunks(others)[place, column]
        flat = row * self._batch + image
        highest = log_p.detach().flatten().scatter_reduce(0, flat, others_log_p.detach(), "amax").clamp_min(-1e30)
        total = torch.exp(log_p.flatten() - highest).scatter_add(0, flat, torch.exp(others_log_p - highest[flat]))
        return (highest + total.log()).reshape(log_p.shape) - member.sum(-1).log()

    def _sample(self, count: int, generator: torch.Generator | None) -> Float[Tensor, "rotations batch 4"]:
        return self.classes.draw(self.inner._sample(count, generator), generator)

    def _topk(self, k: int) -> TopK:
        """The best of the inner distribution's best sentences and of all that are indistinguishable from them."""
        q, log_p = self.inner._topk(k)
        member = self.classes.members(q)
        for image in member[..., 1:].any(-1).any(0).nonzero()[:, 0].tolist():  # few pictures fit several rotations
            each, score = self._ranked_class(image, q[:, image], member[:, image])
            n = min(len(q), len(each))
            q[:n, image], log_p[:n, image] = each[:n], score[:n]
        return TopK(q, log_p)

    def _ranked_class(
        self, image: int, q: Float[Tensor, "k 4"], member: Bool[Tensor, "k g"]
    ) -> tuple[Float[Tensor, "n 4"], Float[Tensor, "n"]]:
        """Rotations indistinguishable from some of an image, one of each cell, with the log-probabilities of their cells, best first."""
        assert isinstance(self.inner, QuaternionSentences)
        row, element = member.nonzero(as_tuple=True)
        each, cells = canonical(multiply(q[row], self.classes.elements.to(q)[element])), self.inner.cells
        point = cells.chart.split(each)
        cell = cells.locate(point)
        score = self._some(slice(image, image + 1)).log_prob(each[:, None])[:, 0] - cells.log_factor(point, cell)
        order = score.argsort(descending=True)
        codes = torch.cat([point.chart[:, None], cell], -1)[order].tolist()
        first = {tuple(code): place for place, code in reversed(list(enumerate(codes)))}
        kept = order[sorted(first.values())]
        return each[kept], score[kept].to(q.dtype)
