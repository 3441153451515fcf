"""What an experiment leaves behind: OUT/NAME.json, figures in one style and a page; and a report that binds all pages.

Experiments return values. What is said of them stands in `sections.md`, with fields for the values. A section is that
text, filled in: {"name", "title", "rows": [{"what", "here", "paper", "ceiling"}], "text", "reductions", "figures":
[{"file", "caption"}]}.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from PIL import Image

from aquamam import __version__
from aquamam.errors import InputError
from aquamam.files import write_json, write_text
from aquamam.pages.page import image_uri, page
from aquamam.plotting import style

LEAD = "Log-likelihoods are with respect to volume π² (uniform: −2.2895) unless said otherwise; quaternions are xyzw."
# Okabe and Ito's colours, which colour-blind readers can tell apart
BLUE, ORANGE, BLACK, GREY = "#0072B2", "#D55E00", "#222222", "#8A8A8A"
STYLE: Any = {
    **{"font.size": 11, "axes.titlesize": 12, "axes.edgecolor": BLACK, "legend.frameon": False},
    **{"axes.spines.top": False, "axes.spines.right": False, "figure.constrained_layout.use": True},
}


@contextmanager
def drawing(path: Path, width: float, height: float) -> Iterator[Figure]:
    """A figure in the style of all experiments, written to the path at the end."""
    with style.drawing(width, height, STYLE) as figure:
        yield figure
        style.save(figure, path, dpi=150)


def template(name: str) -> str:
    """A text file of this package."""
    return (resources.files("aquamam.reproduce") / name).read_text(encoding="utf-8")


def fill(name: str, parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The section that `sections.md` has under the names of the parts, with their values, and under its own title.

    What it says of reductions is left out where a part's values have "reduced": False.
    """
    texts = dict(part.split("\n", 1) for part in template("sections.md").split("\n## ")[1:])
    titles = {head.split(": ")[0]: head for head in texts}
    section: dict[str, Any] = {"name": name, "title": titles[name].partition(": ")[2].format_map(parts[name])}
    section |= {"rows": [], "text": [], "reductions": [], "figures": []}
    for part, values in parts.items():
        for line in texts[titles[part]].format_map(values).splitlines():
            if line.startswith("| "):
                cells = [cell.strip() for cell in line.strip("| ").split("|")]
                section["rows"].append(dict(zip(("what", "here", "paper", "ceiling"), [*cells, "", ""])))
            elif line.startswith("!["):
                caption, file = line[2:-1].split("](")
                section["figures"].append({"file": file, "caption": caption})
            elif line.startswith("- ") and values.get("reduced", True):
                section["reductions"].append(line[2:])
            elif line and not line.startswith("- "):
                section["text"].append(line)
    return section


def to_html(section: dict[str, Any], folder: Path) -> str:
    """A section for a page, with the pictures of its folder inside."""
    parts = [f'<h2 id="{section["name"]}">{escape(section["title"])}</h2>', _html_table(section["rows"])]
    parts += [f"<p>{escape(line)}</p>" for line in section["text"]]
    if section["reductions"]:
        items = "".join(f"<li>{escape(line)}</li>" for line in section["reductions"])
        parts.append(f"<div class=card><h3>Where the scale differs from the paper</h3><ul>{items}</ul></div>")
    for figure in section["figures"]:
        caption, uri = escape(figure["caption"]), image_uri(Image.open(folder / figure["file"]))
        parts.append(f'<figure><img alt="{caption}" src="{uri}"><figcaption>{caption}</figcaption></figure>')
    return "\n".join(parts)


def _html_table(rows: list[dict[str, str]]) -> str:
    lines = ["<th></th><th>paper</th><th>here</th><th>ceiling</th>"]
    lines += ["".join(f"<td>{escape(row[name])}</td>" for name in ("what", "paper", "here", "ceiling")) for row in rows]
    return f'<div class="card scroll"><table class=words><tr>{"</tr><tr>".join(lines)}</tr></table></div>'


def _write_page(path: Path, title: str, body: list[str]) -> None:
    head = f"<main><h1>{escape(title)}</h1><p class=soft>{LEAD}</p>"
    foot = f"<footer>Made by aquamam {__version__} with <code>aquamam reproduce</code>.</footer></main>"
    write_text(path, page(title, "\n".join([head, *body, foot]), styles=["report.css"]))


def finish(
    out: Path, name: str, result: dict[str, Any], parts: dict[str, dict[str, Any]] | None = None
) -> dict[str, Any]:
    """Write OUT/NAME.json, with its section in it, and OUT/NAME.html; returns what the JSON file holds.

    parts: names in `sections.md` and their values, where the section is made of several.
    """
    section = fill(name, parts or {name: result})
    result = {**result, "section": section}
    write_json(out / f"{name}.json", result)
    _write_page(out / f"{name}.html", section["title"], [to_html(section, out)])
    for state in out.glob("*state.pt"):  # done: running again starts afresh
        state.unlink()
    return result


def bind(
    out: Path,
    runs: dict[str, Callable[[Path], dict[str, Any]]],
    *,
    only: Sequence[str] | None = None,
    keep: bool = False,
) -> list[dict[str, Any]]:
    """Run experiments into OUT/NAME each and bind OUT/report.html; returns the sections.

    keep: take OUT/NAME/NAME.json where it is there.
    """
    if unknown := [name for name in only or () if name not in runs]:
        raise InputError(f"experiments are {', '.join(runs)}, got {', '.join(unknown)}.")
    sections = []
    for name in only or runs:
        file = out / name / f"{name}.json"
        result = json.loads(file.read_text()) if keep and file.exists() else runs[name](out / name)
        sections.append(result["section"])
    rows = [{**row, "what": f"{section['name']}: {row['what']}"} for section in sections for row in section["rows"]]
    body = [f"<h2>All in one table</h2>{_html_table(rows)}"] if len(sections) > 1 else []
    body += [to_html(section, out / section["name"]) for section in sections]
    _write_page(out / "report.html", "AQuaMaM, reproduced", body)
    return sections
