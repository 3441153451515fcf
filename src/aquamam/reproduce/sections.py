"""A section of the report: what the paper says, what came out here, how far anything could go, and what was reduced."""

import html
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from aquamam import __version__
from aquamam.files import write_text
from aquamam.pages.page import image_uri, page
from aquamam.reproduce.results import table, write_result

LEAD = "Log-likelihoods are with respect to volume π² (uniform: −2.2895) unless said otherwise; rotations are quaternions xyzw."


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table, as text; empty where there is nothing to say."""

    what: str
    here: str
    paper: str = ""
    ceiling: str = ""


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A picture beside the JSON file, and what it shows."""

    file: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """What an experiment tells, in words; it is stored in OUT/NAME.json under "section"."""

    name: str
    title: str
    rows: tuple[Row, ...] = ()
    text: tuple[str, ...] = ()
    reductions: tuple[str, ...] = ()  # where the scale is not the paper's
    figures: tuple[Figure, ...] = ()

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Section":
        """The inverse of `dataclasses.asdict`."""
        return cls(
            name=values["name"],
            title=values["title"],
            rows=tuple(Row(**row) for row in values["rows"]),
            text=tuple(values["text"]),
            reductions=tuple(values["reductions"]),
            figures=tuple(Figure(**figure) for figure in values["figures"]),
        )

    def lines(self) -> str:
        """The section for a terminal."""
        parts = [self.title]
        if self.rows:
            head = ("", "here", "paper", "ceiling")
            rows = [head, *((row.what, row.here, row.paper, row.ceiling) for row in self.rows)]
            kept = [c for c in range(4) if c < 2 or any(row[c] for row in rows[1:])]
            parts.append(table([tuple(row[c] for c in kept) for row in rows]))
        parts += self.text
        if self.reductions:
            parts.append("\n".join(["Reduced against the paper:", *(f"- {line}" for line in self.reductions)]))
        return "\n\n".join(parts)


def finish(out: Path, section: Section, result: dict[str, Any]) -> dict[str, Any]:
    """Write OUT/NAME.json, with its section in it, and OUT/NAME.html; returns what the JSON file holds."""
    result = {**result, "section": asdict(section)}
    write_result(out, section.name, result)
    write_page(out / f"{section.name}.html", [(out, section)], title=section.title)
    return result


def write_page(
    path: Path, sections: Sequence[tuple[Path, Section]], *, title: str, missing: Iterable[str] = ()
) -> Path:
    """One self-contained page of sections, each with the folder of its pictures; it loads nothing from anywhere."""
    body = [f"<main><h1>{_text(title)}</h1>", f"<p class=soft>{LEAD}</p>"]
    if len(sections) > 1:
        body.append(_summary([section for _, section in sections]))
    body += [f"<p class=soft>{_text(line)}</p>" for line in missing]
    body += [_section(folder, section) for folder, section in sections]
    body.append(f"<footer>Made by aquamam {__version__} with <code>aquamam reproduce</code>.</footer></main>")
    return write_text(path, page(title, "\n".join(body), styles=["report.css"]))


def _summary(sections: list[Section]) -> str:
    rows = []
    for section in sections:
        for i, row in enumerate(section.rows):
            name = f'<a href="#{section.name}">{section.name}</a>' if i == 0 else ""
            scale = ("reduced" if section.reductions else "full") if i == 0 else ""
            rows.append([name, *map(_text, (row.what, row.paper, row.here, row.ceiling)), scale])
    return "<h2>All in one table</h2>" + _table(["experiment", "figure", "paper", "here", "ceiling", "scale"], rows)


def _section(folder: Path, section: Section) -> str:
    parts = [f'<h2 id="{section.name}">{_text(section.title)}</h2>']
    if section.rows:
        rows = [list(map(_text, (row.what, row.paper, row.here, row.ceiling))) for row in section.rows]
        parts.append(_table(["", "paper", "here", "ceiling"], rows))
    parts += [f"<p>{_text(line)}</p>" for line in section.text]
    if section.reductions:
        items = "".join(f"<li>{_text(line)}</li>" for line in section.reductions)
        parts.append(f"<div class=card><h3>Where the scale differs from the paper</h3><ul>{items}</ul></div>")
    for figure in section.figures:
        caption, uri = _text(figure.caption), image_uri(Image.open(folder / figure.file))
        parts.append(f'<figure><img alt="{caption}" src="{uri}"><figcaption>{caption}</figcaption></figure>')
    return "\n".join(parts)


def _table(head: list[str], rows: list[list[str]]) -> str:
    """HTML cells as a table, without columns that are empty."""
    kept = [c for c in range(len(head)) if any(row[c] for row in rows)]
    lines = [[f"<th>{head[c]}</th>" for c in kept], *([f"<td>{row[c]}</td>" for c in kept] for row in rows)]
    body = "".join(f"<tr>{''.join(line)}</tr>" for line in lines)
    return f'<div class="card scroll"><table class=words>{body}</table></div>'


def _text(value: str) -> str:
    return html.escape(value, quote=True)
