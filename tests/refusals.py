"""Bad input gets one sentence: the rule, what came, what to try."""

import pytest

from aquamam.errors import InputError


def is_a_sentence(text: str) -> bool:
    return len(text.splitlines()) == 1 and text.endswith(".") and len(text) < 600 and "Traceback" not in text


def refused(words: str, call, *arguments, **options) -> None:
    """The call raises InputError: a sentence in which the pattern is found."""
    with pytest.raises(InputError, match=words) as error:
        call(*arguments, **options)
    assert is_a_sentence(str(error.value)), error.value
