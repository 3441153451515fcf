"""What the package says when its input cannot be used, and configs that refuse what they cannot be."""

from dataclasses import asdict, fields
from typing import Any, ClassVar, TypeVar

C = TypeVar("C", bound="Config")


class InputError(ValueError):
    """Bad input from a user, told in one sentence: the rule, what came, what to try."""


def require(rule: bool, sentence: str) -> None:
    """Raise an InputError with this sentence unless the rule holds."""
    if not rule:
        raise InputError(sentence)


class Config:
    """A base for frozen dataclasses of numbers, words and tuples of them, which travel as JSON: in checkpoints, in run
    folders, beside data. What cannot be is refused with a sentence."""

    called: ClassVar[str] = "a config"  # in sentences to the user
    positive: ClassVar[tuple[str, ...]] = ()  # fields that must be so
    choices: ClassVar[dict[str, tuple[Any, ...]]] = {}  # what fields may be

    def __post_init__(self) -> None:
        for cls in type(self).__mro__:
            require_positive(self, *vars(cls).get("positive", ()))
            for name, known in vars(cls).get("choices", {}).items():
                came = getattr(self, name)
                require(came in known, f"{name} must be one of {', '.join(map(str, known))}, got {came!r}.")

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
        require(getattr(config, name) > 0, f"{name} must be positive, got {getattr(config, name)}.")
