"""Bad input gets one sentence: the rule, what came, what to try."""

import pytest

from aquamam.errors import InputError


def refused(words: str, call, *arguments, **options) -> None:
    """The call raises InputError: one line, a sentence in which the pattern is found."""
    with pytest.raises(InputError, match=words) as error:
        call(*arguments, **options)
    assert "\n" not in str(error.value)
    assert str(error.value).endswith("."), error.value
