"""What the package says when its input cannot be used."""


class InputError(ValueError):
    """Bad input from a user, told in one sentence: the rule, what came, what to try."""


def require(rule: bool, sentence: str) -> None:
    """Raise an InputError with this sentence unless the rule holds."""
    if not rule:
        raise InputError(sentence)
