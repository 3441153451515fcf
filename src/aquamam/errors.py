"""What the package says when its input cannot be used."""


class InputError(ValueError):
    """Bad input from a user, told in one sentence: the rule, what came, what to try."""
