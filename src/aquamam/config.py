"""Frozen dataclasses that travel as JSON: in checkpoints, in run folders, beside data."""

from dataclasses import asdict, fields
from typing import Any, ClassVar, TypeVar

from aquamam.errors import InputError

C = TypeVar("C", bound="Config")


class Config:
    """A base for frozen dataclasses of numbers, words and tuples of them; what cannot be is refused with a sentence."""

    called: ClassVar[str] = "a config"  # in sentences to the user

    @classmethod
    def from_dict(cls: type[C], values: dict[str, Any]) -> C:
        """The inverse of `to_dict`."""
        known = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        if unknown := sorted(set(values) - set(known)):
            raise InputError(f"{cls.called} has no field {', '.join(unknown)}; it has {', '.join(known)}.")
        # JSON has lists only
        return cls(**{name: tuple(v) if isinstance(v, list) else v for name, v in values.items()})

    def to_dict(self) -> dict[str, Any]:
        """As plain values for JSON."""
        values = asdict(self)  # type: ignore[call-overload]
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}


def require_positive(config: object, *names: str) -> None:
    """Raise unless these fields are positive."""
    for name in names:
        if not getattr(config, name) > 0:
            raise InputError(f"{name} must be positive, got {getattr(config, name)}.")
