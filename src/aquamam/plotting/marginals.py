"""The paper's Figure 3 for a real image: the three conditionals over bins; bins that geometry forbids are shaded."""

from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from aquamam.errors import InputError
from aquamam.geometry.rotations import as_unit_quat
from aquamam.plotting.cloud import check_single
from aquamam.plotting.style import ACCENT, DENSITY, FAINT, MUTED, drawing, heading
from aquamam.posterior.distribution import RotationDistribution
from aquamam.posterior.sentences import QuaternionSentences

ZOOM = 12  # bins on either side of the chosen one
ILLEGAL: Any = {"facecolor": FAINT, "hatch": "////", "edgecolor": MUTED}


def marginals(posterior: RotationDistribution, *, at: Any = None, title: str = "") -> Figure:
    """Conditionals of the posterior of one image along the tokens of one quaternion, `at` (xyzw) or the prediction.

    Each row is one token; on the right it is seen from near. With the atlas chart the first token also says which
    component is dropped: its row shows the distribution within the chart, and the chart's share of probability.
    """
    posterior = posterior.unwrapped
    if not isinstance(posterior, QuaternionSentences):
        raise InputError("only a model with bins has conditionals over bins; choose another kind of picture for this.")
    check_single(posterior)
    q = posterior.mode if at is None else as_unit_quat(at, "at").reshape(-1, 4)[:1]
    rows, chart_share = conditionals(posterior, q)
    cells = posterior.cells
    point = cells.chart.split(q[None].double().cpu())
    cell, u = cells.locate(point)[0, 0], point.u[0, 0].tolist()
    dropped = "xyzw"[cells.chart.components[int(point.chart)]]
    names = "xyzw".replace(dropped, "")
    whose = "the prediction" if at is None else "the given rotation"
    words = f"the conditionals that lead to {whose}"
    if cells.chart.count > 1:
        share = f"{100 * chart_share:.1f} % of the probability does"
        words += f"; the first token drops $q_{dropped}$, the largest component ({share})"
    with drawing(9.6, 7.2) as figure:
        heading(figure, title or "One token after another", words)
        for step in range(3):
            given = "".join(f", $q_{names[i]}$ = {u[i]:.3f}" for i in range(step))
            label = f"$p(q_{names[step]}\\,|$ image{given}$)$"
            for zoom, left, width in ((False, 0.07, 0.58), (True, 0.73, 0.25)):
                axes = figure.add_axes((left, 0.68 - 0.275 * step, width, 0.185))
                _draw_row(axes, rows[step], int(cell[step]), u[step], cells, cell[:step], zoom=zoom)
                axes.set_title("from near" if zoom else label, pad=4)
                axes.set_ylabel("" if zoom else "probability of a bin", fontsize=8)
        handles = [
            Patch(color=DENSITY[-2], label=f"probability of each of {cells.bins} bins"),
            Patch(lw=0, label="illegal bins: no unit quaternion lies there", **ILLEGAL),
            Line2D([], [], color=ACCENT, lw=1.4, label=whose),
        ]
        figure.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.06, 0.005), ncols=3)
    return figure


def conditionals(posterior: QuaternionSentences, q: Any) -> tuple[Float64[np.ndarray, "3 bins"], float]:
    """Probabilities of the bins at each of the three steps that lead to q (1, 4), xyzw; and the share of q's chart."""
    cells = posterior.cells
    with torch.no_grad():
        first = posterior.first_log_probs().double().reshape(cells.chart.count, cells.bins)
        point = cells.chart.split(q[None].double().to(first.device))
        later = posterior.later_logits(point, cells.locate(point))[0, 0].double()
    of_chart = first[int(point.chart)]
    return torch.cat([of_chart[None], later]).softmax(-1).cpu().numpy(), float(of_chart.exp().sum())


def _draw_row(axes: Any, p: np.ndarray, chosen: int, value: float, cells: Any, before: Any, *, zoom: bool) -> None:
    half = cells.chart.half_width
    edges = np.linspace(-half, half, cells.bins + 1)
    axes.stairs(p, edges, fill=True, color=DENSITY[-2], lw=0)
    axes.stairs(p, edges, color=DENSITY[-2], lw=0.6)
    legal = cells.legal(before).numpy()
    for a, b in ((-half, edges[:-1][legal].min()), (edges[1:][legal].max(), half)):
        if b > a:
            axes.axvspan(a, b, lw=0, alpha=0.8, zorder=0, **ILLEGAL)
    axes.axvline(value, color=ACCENT, lw=1.4, zorder=4)
    middle, reach = (edges[chosen] + edges[chosen + 1]) / 2, (ZOOM + 0.5) * cells.width
    axes.set_xlim((middle - reach, middle + reach) if zoom else (-half, half))
    shown = p[max(0, chosen - ZOOM) : chosen + ZOOM + 1] if zoom else p
    axes.set_ylim(0, 1.12 * max(shown.max(), 1e-9))
    axes.locator_params(axis="both" if zoom else "y", nbins=3)
