"""What a checkpoint knows besides its network: what held-out images say about its posteriors (`Calibration`), and which
rotations of its part are indistinguishable in an image (`ViewClasses`)."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

import torch
from jaxtyping import Bool, Float, Int64
from torch import Tensor

from aquamam.errors import InputError, require
from aquamam.geometry.rotations import Generator, as_unit_quat, multiply, quat_to_matrix

TOKENS = 6  # of a rotation and a window


@dataclass(frozen=True, kw_only=True)
class ConformalScores:
    """Scores of held-out truths, smallest first, in groups by how spread out the posterior is."""

    samples: int  # rotations that the scores were ranked among
    scores: tuple[tuple[float, ...], ...]
    edges: tuple[float, ...] = ()  # between the groups, in nats of entropy

    def __post_init__(self) -> None:
        good = self.samples > 0 and len(self.edges) == len(self.scores) - 1
        require(good, "conformal scores must be of some samples, with one edge less than groups; calibrate again.")

    def mass(self, level: float, spread: Float[Tensor, "batch"]) -> Float[Tensor, "batch"]:
        """The share of the posterior that holds the truth with this probability; 1 where too few were held out."""
        masses = torch.tensor([quantile(group, level) for group in self.scores], dtype=torch.float64)
        edges = torch.tensor(self.edges, dtype=torch.float64)
        return masses[torch.searchsorted(edges, spread.double().cpu().contiguous())].to(spread.device)


def quantile(scores: Sequence[float], level: float) -> float:
    """The ceil((n + 1) level)-th smallest, or 1 if there are fewer."""
    rank = math.ceil((len(scores) + 1) * level - 1e-9)
    return scores[rank - 1] if rank <= len(scores) else 1.0


@dataclass(frozen=True, kw_only=True)
class Typicality:
    """How unusual an image is: how far the encoder's state lies from those of held-out images, under a Gaussian along
    their principal directions that is alike in all others, and how undecided the first token is. Scores of held-out
    images that did not make the Gaussian turn a new one's into a p-value.
    """

    mean: tuple[float, ...]
    directions: tuple[tuple[float, ...], ...]  # each divided by the standard deviation along it
    rest: float  # standard deviation along each of the other directions
    usual: tuple[tuple[float, float], ...] = ((0.0, 1.0), (0.0, 1.0))  # mean and deviation of distance and entropy
    scores: tuple[float, ...] = ()  # of held-out images, smallest first

    def score(self, states: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch"]:
        """The sum of both in standard deviations; the last number of a state is the entropy."""
        both = torch.stack([self.distance(states[:, :-1]), states[:, -1].double()], -1)
        mean, deviation = both.new_tensor(self.usual).unbind(-1)
        return ((both - mean) / deviation).sum(-1)

    def distance(self, states: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch"]:
        """Mean squared deviation from held-out images in standard deviations."""
        centred = states.double() - states.new_tensor(self.mean, dtype=torch.float64)
        directions = states.new_tensor(self.directions, dtype=torch.float64)
        along = centred @ directions.mT
        left = centred - along @ (directions / directions.square().sum(-1, keepdim=True))
        return (along.square().sum(-1) + (left / self.rest).square().sum(-1)) / states.shape[-1]

    def p_value(self, states: Float[Tensor, "batch dim"]) -> Float[Tensor, "batch"]:
        """The share of images like the held-out ones that are at least as unusual: uniform for such an image."""
        known = states.new_tensor(self.scores, dtype=torch.float64)
        below = torch.searchsorted(known, self.score(states).contiguous())
        return (len(known) - below + 1) / (len(known) + 1)


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """Everything that is fitted to held-out images after training; the default changes nothing."""

    temperatures: tuple[float, ...] = ()  # by which the logits of each token are divided; those that are missing are 1
    floor: float = 0.0  # share of the uniform distribution in every posterior
    scores: ConformalScores | None = None  # of held-out truths, for regions
    typicality: Typicality | None = None  # of held-out images

    def __post_init__(self) -> None:
        object.__setattr__(self, "temperatures", (*self.temperatures, *[1.0] * (TOKENS - len(self.temperatures))))
        good = len(self.temperatures) == TOKENS and all(0 < t < math.inf for t in self.temperatures)
        require(good, f"temperatures must be positive numbers, one for each token, got {self.temperatures}.")
        require(0 <= self.floor < 1, f"the floor must be a share from 0 to less than 1, got {self.floor}; try 0.01.")

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Calibration":
        """The inverse of `to_dict`."""
        try:
            scores, typicality = data.get("scores"), data.get("typicality")
            return cls(
                temperatures=_numbers(data.get("temperatures", ())),
                floor=_numbers(data.get("floor", 0.0)),
                scores=_told(ConformalScores, scores) if scores else None,
                typicality=_told(Typicality, typicality) if typicality else None,
            )
        except InputError:
            raise
        except (AttributeError, TypeError, ValueError) as error:
            rule = "a calibration must hold temperatures, floor, scores and typicality"
            raise InputError(f"{rule}, got {data!r:.60}; calibrate the model again.") from error


def _told(kind: Any, data: Mapping[str, Any]) -> Any:
    """One of the classes above from what JSON tells of its fields."""
    return kind(**{one.name: _numbers(data[one.name]) for one in fields(kind) if one.name in data})


def _numbers(value: Any) -> Any:
    """Numbers in tuples; JSON has lists only."""
    if isinstance(value, (list, tuple)):
        return tuple(map(_numbers, value))
    return value if isinstance(value, int) else float(value)


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
        fits = self.changed.shape == (len(self.elements), len(self.planes)) and not bool(self.changed[0].any())
        came = f"{len(self.elements)} elements, {len(self.planes)} planes and marks {tuple(self.changed.shape)}"
        require(fits, f"view classes need a mark for each element and plane, none for the identity, got {came}.")
        near, product = (multiply(self.elements[:, None], self.elements) @ self.elements.mT).abs().max(-1)
        require(bool((near > 1 - 1e-4).all()), "view classes need a group of rotations, and products are missing.")
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
