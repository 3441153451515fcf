"""Bad input gets one sentence: the rule, what came, what to try."""

import pytest

from aquamam.errors import InputError


def refused(sentence: str, call, *arguments, **options) -> None:
    """The call raises InputError with one line in which the pattern is found."""
    with pytest.raises(InputError, match=sentence) as error:
        call(*arguments, **options)
    assert "\n" not in str(error.value)
