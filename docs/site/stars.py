"""Stars of shapes in docstrings, (*batch, 4), are no emphasis."""

import re
from typing import Any

import griffe


class Stars(griffe.Extension):
    """Called by mkdocstrings for every object that it read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring:
            parts = re.split(r"(`[^`]*`|\$[^$]*\$)", obj.docstring.value)  # code and formulas stay as they are
            parts[::2] = [re.sub(r"(?<![*\\])\*(?=[#\w])", r"\\*", part) for part in parts[::2]]
            obj.docstring.value = "".join(parts)
