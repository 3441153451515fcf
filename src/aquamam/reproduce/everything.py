"""All experiments, bound into one page."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aquamam.errors import InputError
from aquamam.reproduce.sections import Section, write_page


@dataclass(frozen=True, kw_only=True)
class Report:
    """What was bound and what could not be run."""

    page: Path
    sections: tuple[Section, ...]
    missing: tuple[str, ...]


def run(
    out: Path,
    runs: dict[str, Callable[[Path], dict[str, Any]]],
    *,
    only: Sequence[str] | None = None,
    keep: bool = False,
    optional: Sequence[str] = (),
) -> Report:
    """Run experiments into OUT/NAME each and bind OUT/report.html.

    keep: take OUT/NAME/NAME.json as it is where it is there. An `optional` experiment that lacks its input is told in the page.
    """
    unknown = [name for name in only or () if name not in runs]
    if unknown:
        raise InputError(f"experiments are {', '.join(runs)}, got {', '.join(unknown)}.")
    sections: list[tuple[Path, Section]] = []
    missing = []
    for name, work in runs.items():
        if only is not None and name not in only:
            continue
        folder = out / name
        file = folder / f"{name}.json"
        try:
            result = json.loads(file.read_text()) if keep and file.exists() else work(folder)
        except InputError as error:
            if name not in optional:
                raise
            missing.append(f"{name} was left out: {error}")
            continue
        sections.append((folder, Section.from_dict(result["section"])))
    out.mkdir(parents=True, exist_ok=True)
    page = write_page(out / "report.html", sections, title="AQuaMaM, reproduced", missing=missing)
    return Report(page=page, sections=tuple(section for _, section in sections), missing=tuple(missing))
