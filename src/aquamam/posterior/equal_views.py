r"""Equal shares for rotations that give one picture.

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

KEY = "alike"  # where a checkpoint's description keeps the table


@dataclass(frozen=True, kw_only=True, eq=False)
class Alike:
    """Which turns of an object give the same picture, and the planes whose sight tells them apart.

    A turn g changes the picture of R if the camera is before one of the planes that g repaints.
    """

    turns: Float[Tensor, "g 4"]  # a group, xyzw, the identity first
    planes: Float[Tensor, "p 4"]  # normals and heights in the object's frame
    changed: Bool[Tensor, "_ _"]  # which turn repaints which plane
    distance: float  # of the camera from the object's origin

    def __post_init__(self) -> None:
        group = SymmetryGroup(elements=self.turns)  # which checks that it is one
        if self.changed.shape != (len(self.turns), len(self.planes)) or bool(self.changed[0].any()):
            raise InputError(
                "lookalikes need a mark for each turn and plane, none of them for the identity, got "
                f"{len(self.turns)} turns, {len(self.planes)} planes and marks {tuple(self.changed.shape)}."
            )
        object.__setattr__(self, "turns", group.elements)
        products = multiply(group.elements[:, None], group.elements)
        object.__setattr__(self, "_product", (products @ group.elements.mT).abs().argmax(-1))

    # --- what it is for -----------------------------------------------------------------------------------------------

    @torch.no_grad()
    def members(self, q: Float[Tensor, "*shape 4"]) -> Bool[Tensor, "*shape g"]:
        """Which turns g of each rotation (xyzw) give q g, a rotation of its class; the identity always does."""
        flat = q.reshape(-1, 4)
        same = self._same(self._eye(flat))
        several = same.sum(-1) > 1
        same[several] = self._agreed(flat[several], same[several])
        return same.reshape(*q.shape[:-1], len(self.turns))

    def draw(self, q: Float[Tensor, "*shape 4"], generator: torch.Generator | None = None) -> Float[Tensor, "*shape 4"]:
        """One of the class of each rotation, all equally likely."""
        member = self.members(q)
        u = torch.rand(q.shape[:-1], generator=generator, dtype=torch.float64, device=q.device)
        rank = (u * member.sum(-1)).long()[..., None]
        which = (member.cumsum(-1) <= rank).sum(-1)
        return canonical(multiply(q, self.turns.to(q)[which]))

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
        turns = self.turns.to(q.device)
        theirs = self._same(
            rotate(inverse(turns), self._eye(q)[:, None])
        )  # (n, g, h): whether q g and q g h look alike
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
            "turns": self.turns.tolist(),
            "planes": self.planes.tolist(),
            "changed": ["".join("01"[int(mark)] for mark in row) for row in self.changed],
            "distance": self.distance,
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Alike":
        """The inverse of `to_dict`."""
        try:
            turns = as_unit_quat(data["turns"], "turns")
            planes = torch.tensor(data["planes"], dtype=torch.float64).reshape(-1, 4)
            changed = torch.tensor([[mark == "1" for mark in row] for row in data["changed"]], dtype=torch.bool)
            distance = float(data["distance"])
        except (KeyError, TypeError, ValueError, RuntimeError) as error:
            raise InputError(
                f"lookalikes must hold turns, planes, changed and distance, got {data!r:.60}; make the checkpoint again."
            ) from error
        return cls(turns=turns, planes=planes, changed=changed, distance=distance)


def told_alike(info: Mapping[str, Any]) -> Alike | None:
    """What the description of a checkpoint tells; None if it tells nothing."""
    return Alike.from_dict(info[KEY]) if info.get(KEY) else None
