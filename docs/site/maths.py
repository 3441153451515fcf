"""Formulas of docstrings become MathML while the site is built, which browsers show without scripts or fonts."""

import html
import re
from typing import Any

from latex2mathml.converter import convert

FORMULA = re.compile(r'<(span|div) class="arithmatex">\\([(\[])(.*?)\\[)\]]</\1>', re.S)


def on_page_content(text: str, **_: Any) -> str:
    """Called by mkdocs with the HTML of a page."""

    def mathml(found: re.Match[str]) -> str:
        return convert(html.unescape(found[3]).strip(), display="block" if found[2] == "[" else "inline")

    return FORMULA.sub(mathml, text)
