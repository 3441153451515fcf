"""Poses of the part that a model knows, from a box in a picture and its camera."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aquamam.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Part:
    """The smallest sphere about its centre that holds a part, in the unit and coordinates of its mesh's file."""

    radius: float
    centre: tuple[float, float, float] = (0.0, 0.0, 0.0)
    unit: str = ""  # of the file, where somebody said it

    def __post_init__(self) -> None:
        if not (0 < self.radius < math.inf) or len(self.centre) != 3 or not all(map(math.isfinite, self.centre)):
            raise InputError(
                f"a part has a positive radius and a centre of three numbers, got {self.radius} and {self.centre}."
            )


def part_of(model: Any) -> Part | None:
    """What a model's description says of its part's size; None if it says nothing."""
    told = (getattr(model, "info", None) or {}).get("part")
    if not isinstance(told, Mapping) or not {"radius", "scale"} & told.keys():
        return None
    try:
        # fits of version 0.1 tell the scale that makes the radius sqrt(3)
        radius = float(told["radius"]) if "radius" in told else math.sqrt(3) / float(told["scale"])
        x, y, z = map(float, told.get("centre", (0.0, 0.0, 0.0)))
        return Part(radius=radius, centre=(x, y, z), unit=str(told.get("unit") or ""))
    except (TypeError, ValueError, ZeroDivisionError) as error:
        raise InputError(f"the model's description of its part is damaged ({error}); fit the part again.") from error
