"""What a notebook shows of a posterior: the ball of rotations as an inline picture, the modes with their shares."""

import io
from html import escape

import torch

from aquamam.pages.page import data_uri
from aquamam.plotting import style
from aquamam.plotting.ball import draw_ball
from aquamam.plotting.cloud import Cloud, make_cloud
from aquamam.posterior.distribution import RotationDistribution

MOST_IMAGES, MOST_MODES = 4, 6  # that are shown
SIDE = 240  # pixels of a ball


def posterior_html(posterior: RotationDistribution) -> str:
    """HTML of the first few images; drawn with a seed of its own, so that a cell shows the same when run again."""
    if len(posterior.batch_shape) != 1:
        return f"<pre>{escape(repr(posterior))}</pre>"
    count = posterior.batch_shape[0]
    each = [posterior] if count == 1 else [posterior._some(slice(i, i + 1)) for i in range(min(count, MOST_IMAGES))]
    shown = [make_cloud(one, samples=400, uniform=0, generator=torch.Generator().manual_seed(0)) for one in each]
    more = f"<p>and {count - len(each)} more images</p>" if count > len(each) else ""
    return "".join(map(_one, shown)) + more


def _one(cloud: Cloud) -> str:
    rows = [
        f"<tr><td>{100 * mode.share:.0f} %</td><td>{mode.kind}</td><td>{mode.radius_deg:.1f}°</td>"
        f"<td>({', '.join(f'{x:+.3f}' for x in mode.quaternion)})</td><td>{mode.log_density:.2f}</td></tr>"
        for mode in cloud.modes[:MOST_MODES]
    ]
    head = "<tr><th>share</th><th>kind</th><th>90 % within</th><th>quaternion xyzw</th><th>ln p</th></tr>"
    table = f"<table>{head}{''.join(rows)}</table>" if rows else ""
    more = f"<p>and {len(cloud.modes) - len(rows)} more modes</p>" if len(cloud.modes) > len(rows) else ""
    buffer = io.BytesIO()
    with style.drawing(SIDE / 96, SIDE / 96) as figure:
        draw_ball(figure, (0.0, 0.0, 1.0, 1.0), cloud, {})
        figure.savefig(buffer, format="png", dpi=144, facecolor=figure.get_facecolor())  # sharp on dense screens, too
    alt, uri = "Rotations drawn from the posterior", data_uri(buffer.getvalue())
    picture = f'<img width="{SIDE}" height="{SIDE}" alt="{alt}" src="{uri}">'
    words = f"<b>{escape(cloud.answer.words)}</b>"
    return f'<div style="display:flex;gap:1em;align-items:center">{picture}<div>{words}{table}{more}</div></div>'
