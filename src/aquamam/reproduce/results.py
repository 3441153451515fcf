"""What an experiment leaves behind: OUT/NAME.json, and figures in one style."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure

from aquamam.files import write_json

# Okabe and Ito's colours, told apart by colour-blind readers too.
BLUE, ORANGE, GREEN, BLACK, GREY = "#0072B2", "#D55E00", "#009E73", "#222222", "#8A8A8A"
STYLE: Any = {
    "font.size": 11,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 12,
    "axes.edgecolor": BLACK,
    "legend.frameon": False,
    "figure.dpi": 150,
    "figure.constrained_layout.use": True,
}


def style() -> Any:
    """The look of all figures: `with style(): ...`."""
    return rc_context(STYLE)


def save_figure(figure: Figure, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, facecolor="white")
    return path


def write_result(out: Path, name: str, values: dict[str, Any]) -> Path:
    """Write OUT/NAME.json."""
    return write_json(out / f"{name}.json", values, indent=2)


def table(rows: Sequence[tuple[str, ...]]) -> str:
    """Rows of text in columns: the first column to the left, the others to the right."""
    widths = [max(len(row[c]) for row in rows) for c in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(w) if c == 0 else cell.rjust(w) for c, (cell, w) in enumerate(zip(row, widths)))
        for row in rows
    ]
    return "\n".join(line.rstrip() for line in lines)
