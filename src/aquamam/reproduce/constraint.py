"""Figure 3 of the paper: given q_x = 0.7, which bins of q_y are legal, which are not, and which one is cut."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib import figure as plots
from matplotlib.patches import Patch, Rectangle

from aquamam.geometry.cells import Cells
from aquamam.errors import InputError
from aquamam.reproduce.results import BLACK, BLUE, GREY, ORANGE, save_figure, style
from aquamam.reproduce.sections import Figure, Row, Section, finish
from aquamam.geometry.rotations import canonical

LEGAL, CUT, ILLEGAL = "legal", "cut", "illegal"


def bins_of_next(first: float, bins: int) -> list[dict[str, Any]]:
    """The non-negative bins [a, b) of q_y given q_x: what they are, their (cut) width, and whether the network's rule masks them.

    The mask is by the inner edges of the bins chosen so far (Section A.2): it never forbids a bin that some q_x of its bin allows.
    """
    cells = Cells.make("hemisphere", bins, "paper")
    room = math.sqrt(1 - first**2)
    # the sentence's first bin, found from a quaternion that has this q_x
    q = canonical(torch.tensor([first, 0.0, 0.0, room], dtype=torch.float64))
    label = cells.locate(cells.chart.split(q))[:1]
    masked = ~cells.legal(label)
    rows = []
    for i in range(-(-bins // 2), bins):
        a, b = 2 * i / bins - 1, 2 * (i + 1) / bins - 1
        kind = ILLEGAL if a >= room else CUT if b > room else LEGAL
        width = max(0.0, min(b, room) - a)
        rows.append({"lower": a, "upper": b, "kind": kind, "width": width, "masked": bool(masked[i])})
    return rows


def run(out: Path, *, first: float = 0.7, bins: int = 10) -> dict[str, Any]:
    """Draw the figure; returns what OUT/constraint.json holds."""
    if not 0 <= first < 1:
        raise InputError(f"q_x must lie in [0, 1), got {first}.")
    if bins < 2 or bins % 2:
        raise InputError(f"bins must be even, so that an edge stands at zero, and at least 2, got {bins}.")
    rows = bins_of_next(first, bins)
    room = math.sqrt(1 - first**2)
    counts = {kind: sum(row["kind"] == kind for row in rows) for kind in (LEGAL, CUT, ILLEGAL)}
    cut = next((row for row in rows if row["kind"] == CUT), None)
    result = {
        "q_x": first, "room": room, "bins": bins, "rows": rows, "counts": counts,
        "cut_width": None if cut is None else cut["width"], "width": 2 / bins,
        "masked": sum(row["masked"] for row in rows),
    }  # fmt: skip
    draw(out / "constraint.png", rows, first, room)
    section = Section(
        name="constraint",
        title=f"Figure 3: bins of q_y given q_x = {first:g}",
        rows=(
            Row(what="largest |q_y|", here=f"{room:.4f}", paper="√(1 - 0.7²)" if first == 0.7 else ""),
            Row(what=f"of {len(rows)} non-negative bins: legal, cut, illegal", here=", ".join(str(counts[k]) for k in (LEGAL, CUT, ILLEGAL))),
            Row(what="width of the cut bin", here="none is cut" if cut is None else f"{cut['width']:.4f} of {2 / bins:.4f}"),
            Row(what="bins masked by the rule of inner edges", here=str(result["masked"])),
        ),
        text=(
            "The mask uses the smallest magnitudes of the bins chosen so far (Section A.2 of the paper), so it may leave a bin open that this "
            "very q_x forbids; the network learns that it never occurs.",
        ),
        figures=(Figure(file="constraint.png", caption=f"Given q_x = {first:g}, the unit norm leaves |q_y| up to {room:.3f}: bins beyond are illegal, and the uniform density of the bin that it cuts is higher."),),
    )  # fmt: skip
    return finish(out, section, result)


def draw(path: Path, rows: list[dict[str, Any]], first: float, room: float) -> Path:
    """The unit circle with the bins on the line q_x, and the bins' uniform densities."""
    colours = {LEGAL: BLUE, CUT: ORANGE, ILLEGAL: "#e3e5e9"}
    with style():
        figure = plots.Figure(figsize=(11, 4.4))
        left, right = figure.subplots(1, 2, width_ratios=[1, 1.9])
        turn = np.linspace(0, np.pi / 2, 200)
        left.plot(np.cos(turn), np.sin(turn), color=BLACK, lw=1.6)
        for row in rows:
            left.add_patch(
                Rectangle(
                    (first - 0.022, row["lower"]), 0.044, row["upper"] - row["lower"], facecolor=colours[row["kind"]],
                    edgecolor="white", lw=1, hatch="////" if row["kind"] == ILLEGAL else None,
                )
            )  # fmt: skip
        left.plot([0, first], [room, room], color=ORANGE, ls="--", lw=1.4)
        left.text(0.02, room + 0.015, f"$\\sqrt{{1 - q_x^2}}$ = {room:.3f}", color=ORANGE)
        left.set(aspect="equal", xlim=(0, 1.05), ylim=(0, 1.02), xlabel="$q_x$", ylabel="$q_y$")
        left.set_xticks([0, first, 1], ["0", f"{first:g}", "1"])
        left.set_title("(a) what the unit norm leaves")

        top = 1.0
        for row in rows:
            a, b = row["lower"], row["upper"]
            if row["kind"] == ILLEGAL:
                right.add_patch(Rectangle((a, 0), b - a, 1, transform=right.get_xaxis_transform(), facecolor=colours[ILLEGAL], edgecolor="#b9bdc6", hatch="////", lw=0))  # fmt: skip
                right.text((a + b) / 2, 0.5, r"$\pi_i = 0$", transform=right.get_xaxis_transform(), rotation=90, ha="center", va="center", color=GREY)  # fmt: skip
            else:
                height = 1 / row["width"]
                top = max(top, height)
                right.add_patch(Rectangle((a, 0), row["width"], height, facecolor=colours[row["kind"]], edgecolor="white", alpha=0.9))  # fmt: skip
                if row["kind"] == CUT:
                    right.add_patch(Rectangle((a, 0), b - a, 1 / (b - a), fill=False, edgecolor=BLACK, ls=":", lw=1.3))
        right.axvline(room, color=ORANGE, ls="--", lw=1.6)
        right.set(xlim=(0, 1), ylim=(0, 1.42 * top), xlabel="$q_y$", ylabel="density of a bin's uniform distribution")
        right.set_xticks([row["lower"] for row in rows] + [1.0])
        right.tick_params(axis="x", labelrotation=0 if len(rows) <= 10 else 90)
        right.set_title("(b) the mixture's components")
        handles = [
            Patch(color=BLUE, label="legal: $U(a_i, b_i)$"),
            Patch(color=ORANGE, label=r"cut: $U(a_i, \hat b_i)$, $\hat b_i = \sqrt{1 - q_x^2}$; dotted: uncut"),
            Patch(
                facecolor=colours[ILLEGAL],
                edgecolor="#b9bdc6",
                hatch="////",
                label="illegal: $a_i$ is beyond the bound",
            ),
        ]
        right.legend(handles=handles, loc="upper left", fontsize=9.5)
        return save_figure(figure, path)
