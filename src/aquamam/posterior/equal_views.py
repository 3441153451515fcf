r"""Equal shares for rotations that are indistinguishable in an image.

A network learns that the four rotations of a lone five are equally likely, but only roughly. What the object's shape
and paint say about it is exact: which rotations R' give the picture of R does not depend on the network. These
classes divide all rotations, and

$$\bar p(R) = \frac{1}{|C(R)|} \sum_{R' \in C(R)} p(R')$$

is as well normalised as p, since each $R \mapsto R g$ keeps volumes. Its samples are those of p, each replaced by one
of its class at random. Predictions stay those of p.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from aquamam.errors import InputError, require
from aquamam.geometry.rotations import as_unit_quat, multiply, quat_to_matrix
from aquamam.geometry.symmetry import SymmetryGroup
from aquamam.posterior.distribution import Densities, Generator, RotationDistribution, Rotations, TopK, Wrapped


@dataclass(frozen=True, kw_only=True, eq=False)
class ViewClasses:
    """Which rotations g of an object give the same picture of R and R g, and the planes whose sight tells them apart.

    g changes the picture of R if the camera is in front of one of the planes that g repaints.
    """

    elements: Float[Tensor, "g 4"]  # a group, xyzw, the identity first
    planes: Float[Tensor, "p 4"]  # normals and heights in the object's frame
    changed: Bool[Tensor, "_ _"]  # which element repaints which plane
    distance: float  # of the camera from the object's origin
    product: Int64[Tensor, "g g"] = field(init=False)  # number of the element that two of them make

    def __post_init__(self) -> None:
        group = SymmetryGroup(elements=self.elements)  # which checks that it is one
        fits = self.changed.shape == (len(self.elements), len(self.planes)) and not bool(self.changed[0].any())
        came = f"{len(self.elements)} elements, {len(self.planes)} planes and marks {tuple(self.changed.shape)}"
        require(fits, f"view classes need a mark for each element and plane, none for the identity, got {came}.")
        product = (multiply(group.elements[:, None], group.elements) @ group.elements.mT).abs().argmax(-1)
        object.__setattr__(self, "elements", group.elements)
        object.__setattr__(self, "product", product)

    @torch.no_grad()
    def members(self, q: Float[Tensor, "*shape 4"]) -> Bool[Tensor, "*shape g"]:
        """Which elements g of each rotation q (xyzw) give q g, a rotation of its class; the identity always does.

        All members of a class must agree on it, else each is alone. On a polyhedron all do; where round paint is known
        by some points only, a view at the edge of one may not.
        """
        flat = q.reshape(-1, 4).double()
        camera = self.distance * quat_to_matrix(flat)[:, 2]  # in the object's frame
        same = self._same(camera)
        several = (same.sum(-1) > 1).nonzero()[:, 0]
        elements = quat_to_matrix(self.elements.to(flat))
        theirs = self._same(camera[several, None, None] @ elements)[:, :, 0]  # (n, g, h): as q g and q g h are
        mine = same[several][:, self.product]  # as q and q g h are
        agreed = ((theirs == mine).all(-1) | ~same[several]).all(-1)
        same[several[~agreed], 1:] = False
        return same.reshape(*q.shape[:-1], len(elements))

    def _same(self, camera: Float[Tensor, "*shape 3"]) -> Bool[Tensor, "*shape g"]:
        planes = self.planes.to(camera)
        shown = camera @ planes[:, :3].mT > planes[:, 3]
        return shown.float() @ self.changed.to(camera.device).float().mT == 0

    def draw(self, q: Float[Tensor, "*shape 4"], generator: Generator = None) -> Float[Tensor, "*shape 4"]:
        """One of the class of each rotation, all equally likely."""
        member = self.members(q)
        u = torch.rand(q.shape[:-1], generator=generator, dtype=torch.float64, device=q.device)
        rank = (u * member.sum(-1)).long()[..., None]
        which = (member.cumsum(-1) <= rank).sum(-1)
        return multiply(q, self.elements.to(q)[which])

    def to_dict(self) -> dict[str, Any]:
        return {
            "turns": self.elements.tolist(),
            "planes": self.planes.tolist(),
            "changed": ["".join("01"[int(mark)] for mark in row) for row in self.changed],
            "distance": self.distance,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "ViewClasses":
        try:
            elements = as_unit_quat(data["turns"], "turns")
            planes = torch.tensor(data["planes"], dtype=torch.float64).reshape(-1, 4)
            changed = torch.tensor([[mark == "1" for mark in row] for row in data["changed"]], dtype=torch.bool)
            distance = float(data["distance"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            rule = "view classes must hold turns, planes, changed and distance"
            raise InputError(f"{rule}, got {data!r:.60}; make the checkpoint again.") from error
        return cls(elements=elements, planes=planes, changed=changed, distance=distance)


class EqualViews(Wrapped):
    """A posterior in which indistinguishable rotations share their probability equally."""

    def __init__(self, inner: RotationDistribution, classes: ViewClasses):
        super().__init__(inner)
        self.classes = classes

    def _log_prob(self, q: Rotations) -> Densities:
        """The mean of the inner density over the class of each rotation."""
        log_p = self.inner._log_prob(q)
        member = self.classes.members(q)
        image, row, element = member[..., 1:].transpose(0, 1).nonzero(as_tuple=True)
        if not len(image):
            return log_p
        # the others of all classes, image by image; images with fewer than others repeat a rotation
        counts = image.bincount(minlength=self._batch)
        place = torch.arange(len(image), device=q.device) - (counts.cumsum(0) - counts)[image]
        others = q[:1].repeat(int(counts.max()), 1, 1)
        others[place, image] = multiply(q[row, image], self.classes.elements.to(q)[element + 1])
        others_log_p = self.inner._log_probs(others)[place, image]
        flat = row * self._batch + image
        highest = log_p.detach().flatten().scatter_reduce(0, flat, others_log_p.detach(), "amax").clamp_min(-1e30)
        total = torch.exp(log_p.flatten() - highest).scatter_add(0, flat, torch.exp(others_log_p - highest[flat]))
        return (highest + total.log()).reshape(log_p.shape) - member.sum(-1).log()

    def _sample(self, count: int, generator: Generator) -> Rotations:
        return self.classes.draw(self.inner._sample(count, generator), generator)

    def _topk(self, k: int) -> TopK:
        """The best of the inner distribution's best cells and of all that are indistinguishable from them."""
        q, log_p = self.inner._topk(k)
        member = self.classes.members(q)
        for image in member[..., 1:].any(-1).any(0).nonzero()[:, 0].tolist():  # few pictures fit several rotations
            row, element = member[:, image].nonzero(as_tuple=True)
            each = multiply(q[row, image], self.classes.elements.to(q)[element])
            code, log_factor = self._cell(each)
            score = self._some(slice(image, image + 1)).log_prob(each[:, None])[:, 0] - log_factor
            order = score.argsort(descending=True)
            codes = [tuple(one) for one in code[order].tolist()]
            kept = order[[i for i, one in enumerate(codes) if one not in codes[:i]]][: len(q)]  # each cell once
            q[: len(kept), image], log_p[: len(kept), image] = each[kept], score[kept].to(log_p.dtype)
        return TopK(q, log_p)
