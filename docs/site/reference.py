"""What mkdocstrings reads, for Markdown: comments beside fields document them, stars of shapes are no emphasis."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import griffe


@cache
def _lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


class Reference(griffe.Extension):
    """Called by griffe for what it has read."""

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """`bins: int = 500  # N in the paper` documents bins: a list below the class's own words."""
        rows = [row for attribute in cls.attributes.values() if (row := self._row(attribute))]
        if rows and cls.docstring:
            cls.docstring.value += "\n\n" + "\n".join(rows)

    @staticmethod
    def _row(attribute: griffe.Attribute) -> str:
        if attribute.docstring or not attribute.lineno or attribute.name.startswith("_"):
            return ""
        line = _lines(Path(str(attribute.filepath)))[attribute.lineno - 1]
        comment = re.search(r"  # (?!noqa|type:|fmt:)(.+)$", line)
        return f"- `{attribute.name}`: {comment[1]}" if comment else ""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        """(*batch, 4) has no emphasis; code and formulas stay as they are."""
        if obj.docstring:
            parts = re.split(r"(`[^`]*`|\$[^$]*\$)", obj.docstring.value)
            parts[::2] = [re.sub(r"(?<![*\\])\*(?=[#\w])", r"\\*", part) for part in parts[::2]]
            obj.docstring.value = "".join(parts)
