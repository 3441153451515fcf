"""What an experiment leaves behind: OUT/NAME.json, figures in one style and a page; and the report that binds all pages into one.

Experiments return values. What is said of them stands in `sections.md`, with fields for the values.
"""

import html
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

from aquamam import __version__
from aquamam.errors import InputError
from aquamam.files import write_json, write_text
from aquamam.pages.page import image_uri, page

LEAD = "Log-likelihoods are with respect to volume π² (uniform: −2.2895) unless said otherwise; rotations are quaternions xyzw."
# Okabe and Ito's colours, which colour-blind readers can tell apart
BLUE, ORANGE, BLACK, GREY = "#0072B2", "#D55E00", "#222222", "#8A8A8A"
STYLE: Any = {
    **{"font.size": 11, "axes.titlesize": 12, "axes.edgecolor": BLACK, "legend.frameon": False, "figure.dpi": 150},
    **{"axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True},
}


@contextmanager
def drawing(path: Path, width: float | int, height: float | int) -> Iterator[Figure]:
    """A figure in the style of all experiments, written to the path at the end."""
    with rc_context(STYLE):
        figure = Figure(figsize=(width, height))
        yield figure
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, facecolor="white")


@dataclass(frozen=True)
class Row:
    """One line of a section's table; empty where there is nothing to say."""

    what: str
    here: str
    paper: str = ""
    ceiling: str = ""


@dataclass(frozen=True)
class Picture:
    """A file beside the JSON file, and what it shows."""

    file: str
    caption: str


@dataclass(frozen=True, kw_only=True)
class Section:
    """What the paper says, what came out here, how far anything could go, and what was reduced."""

    name: str
    title: str
    rows: Sequence[Row]
    text: Sequence[str]
    reductions: Sequence[str]  # where the scale is not the paper's
    figures: Sequence[Picture]

    @classmethod
    def fill(cls, name: str, parts: dict[str, dict[str, Any]]) -> "Section":
        """What `sections.md` says under the names of the parts, with their values; the first one's title is the section's."""
        template = (resources.files("aquamam.reproduce") / "sections.md").read_text(encoding="utf-8")
        templates = {
            head.partition(": ")[0]: (head, body)
            for head, _, body in (part.partition("\n") for part in template.split("\n## "))
        }
        lines = [line for part, values in parts.items() for line in templates[part][1].format_map(values).splitlines()]
        rows = [line.strip("| ").split("|") for line in lines if line.startswith("| ")]
        figures = [line[2:-1].split("](") for line in lines if line.startswith("![")]
        reductions = [line[2:] for line in lines if line.startswith("- ")]
        return cls(
            name=name,
            title=templates[name][0].partition(": ")[2].format_map(parts[name]),
            rows=[Row(*map(str.strip, row)) for row in rows],
            text=[line for line in lines if line and not line.startswith(("| ", "![", "- "))],
            reductions=reductions + [line for values in parts.values() for line in values.get("reductions", ())],
            figures=[Picture(file, caption) for caption, file in figures],
        )

    @classmethod
    def of(cls, result: dict[str, Any]) -> "Section":
        """The section that a result has in its JSON file."""
        section = result["section"]
        rows, figures = [Row(**row) for row in section["rows"]], [Picture(**figure) for figure in section["figures"]]
        return cls(**{**section, "rows": rows, "figures": figures})

    def lines(self) -> str:
        """The section for a terminal."""
        parts = [self.title]
        if self.rows:
            columns = list(zip(("", "here", "paper", "ceiling"), *map(astuple, self.rows)))
            parts.append(table(list(zip(*(column for column in columns if any(column[1:]))))))
        parts += self.text
        if self.reductions:
            parts.append("\n".join(["Reduced against the paper:", *(f"- {line}" for line in self.reductions)]))
        return "\n\n".join(parts)

    def html(self, folder: Path) -> str:
        """The section for a page, with the pictures of its folder inside."""
        parts = [f'<h2 id="{self.name}">{html.escape(self.title)}</h2>', _html_table(self.rows)]
        parts += [f"<p>{html.escape(line)}</p>" for line in self.text]
        if self.reductions:
            items = "".join(f"<li>{html.escape(line)}</li>" for line in self.reductions)
            parts.append(f"<div class=card><h3>Where the scale differs from the paper</h3><ul>{items}</ul></div>")
        for figure in self.figures:
            caption, uri = html.escape(figure.caption), image_uri(Image.open(folder / figure.file))
            parts.append(f'<figure><img alt="{caption}" src="{uri}"><figcaption>{caption}</figcaption></figure>')
        return "\n".join(parts)


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows of text in columns: the first column to the left, the others to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    lines = [[row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:]))] for row in rows]
    return "\n".join("  ".join(line).rstrip() for line in lines)


def finish(
    out: Path, name: str, result: dict[str, Any], parts: dict[str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Write OUT/NAME.json, with its section in it, and OUT/NAME.html; returns what the JSON file holds.

    parts: names in `sections.md` and their values, where the section is made of several.
    """
    section = Section.fill(name, parts or {name: result})
    result = {**result, "section": asdict(section)}
    write_json(out / f"{name}.json", result)
    _write_page(out / f"{name}.html", section.title, [section.html(out)])
    for state in out.glob("*state.pt"):  # done: running again starts afresh
        state.unlink()
    return result


class Report(NamedTuple):
    """What was bound and what could not be run."""

    page: Path
    sections: list[Section]
    missing: list[str]


def bind(
    out: Path,
    runs: dict[str, Callable[[Path], dict[str, Any]]],
    *,
    only: Sequence[str] | None = None,
    keep: bool = False,
    optional: Sequence[str] = (),
) -> Report:
    """Run experiments into OUT/NAME each and bind OUT/report.html.

    keep: take OUT/NAME/NAME.json as it is where it is there. The page names an `optional` experiment that lacks its input.
    """
    if unknown := [name for name in only or () if name not in runs]:
        raise InputError(f"experiments are {', '.join(runs)}, got {', '.join(unknown)}.")
    sections, missing = [], []
    for name in [name for name in runs if only is None or name in only]:
        file = out / name / f"{name}.json"
        try:
            sections.append(
                Section.of(json.loads(file.read_text()) if keep and file.exists() else runs[name](out / name))
            )
        except InputError as error:
            if name not in optional:
                raise
            missing.append(f"{name} was left out: {error}")
    rows = [replace(row, what=f"{section.name}: {row.what}") for section in sections for row in section.rows]
    body = [f"<h2>All in one table</h2>{_html_table(rows)}"] if len(sections) > 1 else []
    body += [f"<p class=soft>{html.escape(line)}</p>" for line in missing]
    body += [section.html(out / section.name) for section in sections]
    return Report(_write_page(out / "report.html", "AQuaMaM, reproduced", body), sections, missing)


def _write_page(path: Path, title: str, body: list[str]) -> Path:
    """One self-contained page; it loads nothing from anywhere."""
    head = f"<main><h1>{html.escape(title)}</h1><p class=soft>{LEAD}</p>"
    foot = f"<footer>Made by aquamam {__version__} with <code>aquamam reproduce</code>.</footer></main>"
    return write_text(path, page(title, "\n".join([head, *body, foot]), styles=["report.css"]))


def _html_table(rows: Sequence[Row]) -> str:
    head, lines = ("", "paper", "here", "ceiling"), [(row.what, row.paper, row.here, row.ceiling) for row in rows]
    cells = [[f"<th>{name}</th>" for name in head], *([f"<td>{html.escape(c)}</td>" for c in line] for line in lines)]
    body = "".join(f"<tr>{''.join(row)}</tr>" for row in cells)
    return f'<div class="card scroll"><table class=words>{body}</table></div>'
