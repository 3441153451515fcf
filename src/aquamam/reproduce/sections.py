"""A section of the report: what the paper says, what came out here, how far anything could go, and what was reduced."""

import base64
import html
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from aquamam import __version__
from aquamam.files import write_text
from aquamam.reproduce.results import table, write_result


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
    body = []
    if len(sections) > 1:
        body.append(_summary([section for _, section in sections]))
    body += [f"<p class=missing>{_text(line)}</p>" for line in missing]
    body += [_section(folder, section) for folder, section in sections]
    template = (resources.files("aquamam.pages") / "assets" / "report.html").read_text(encoding="utf-8")
    for word, value in (("__TITLE__", _text(title)), ("__VERSION__", __version__), ("__BODY__", "\n".join(body))):
        template = template.replace(word, value)
    return write_text(path, template)


def _summary(sections: list[Section]) -> str:
    rows = []
    for section in sections:
        for i, row in enumerate(section.rows):
            name = f'<a href="#{section.name}">{section.name}</a>' if i == 0 else ""
            scale = ("reduced" if section.reductions else "full") if i == 0 else ""
            cells = "".join(f"<td>{_text(cell)}</td>" for cell in (row.what, row.paper, row.here, row.ceiling))
            rows.append(f"<tr{' class=first' if i == 0 else ''}><td>{name}</td>{cells}<td>{scale}</td></tr>")
    head = "".join(f"<th>{h}</th>" for h in ("experiment", "figure", "paper", "here", "ceiling", "scale"))
    return f"<section><h2>All in one table</h2><div class=wide><table><tr>{head}</tr>{''.join(rows)}</table></div></section>"


def _section(folder: Path, section: Section) -> str:
    parts = [f'<section id="{section.name}"><h2>{_text(section.title)}</h2>']
    if section.rows:
        rows = "".join(
            f"<tr><td>{_text(r.what)}</td><td>{_text(r.paper)}</td><td>{_text(r.here)}</td><td>{_text(r.ceiling)}</td></tr>"
            for r in section.rows
        )
        parts.append(
            f"<div class=wide><table><tr><th></th><th>paper</th><th>here</th><th>ceiling</th></tr>{rows}</table></div>"
        )
    parts += [f"<p>{_text(line)}</p>" for line in section.text]
    if section.reductions:
        items = "".join(f"<li>{_text(line)}</li>" for line in section.reductions)
        parts.append(
            f"<div class=reduced><strong>Where the scale differs from the paper</strong><ul>{items}</ul></div>"
        )
    for figure in section.figures:
        data = base64.b64encode((folder / figure.file).read_bytes()).decode()
        caption = _text(figure.caption)
        parts.append(
            f'<figure><img alt="{caption}" src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'
        )
    return "\n".join([*parts, "</section>"])


def _text(value: str) -> str:
    return html.escape(value, quote=True)
