"""What the bundled models know, shown on pictures rendered on the spot: the main job of `aquamam demo`."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image

from aquamam.checkpoints.checkpoint import bundled, load
from aquamam.geometry.rotations import as_unit_quat, geodesic_angle, rotvec_to_quat
from aquamam.pages.posterior import page_data, write_page
from aquamam.plotting import ball, known_object, make_cloud, save
from aquamam.posterior.answers import Answer, answers


@dataclass(frozen=True, kw_only=True)
class View:
    """A picture to show: a solid under a rotation vector, and what a person sees in it."""

    name: str
    solid: str
    rotation: tuple[float, float, float]
    caption: str
    truth: str  # what is true of it


VIEWS = (
    View(
        name="clear",
        solid="die",
        rotation=(0.5, 0.6, 0.2),
        caption="a die that shows three faces",
        truth="one rotation gives this picture",
    ),
    View(
        name="five",
        solid="die",
        rotation=(0.0, 0.0, 0.3),
        caption="a die that shows only the five",
        truth="four rotations give exactly this picture, 90 degrees apart",
    ),
    View(
        name="cylinder",
        solid="cylinder",
        rotation=(0.4, 0.0, 0.5),
        caption="a cylinder",
        truth="any turn about its axis, and end for end, gives this picture",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A view and what the model said of it."""

    view: View
    answer: Answer
    error_deg: float  # from the prediction to the rendered rotation
    nearest_gap_deg: float | None  # between neighbouring modes, where there are several
    picture: Path
    page: Path


def available() -> list[View]:
    """The views whose models are bundled."""
    return [view for view in VIEWS if view.solid in bundled()]


def show(out: Path, seed: int = 0) -> Iterator[Shown]:
    """Render each view, ask the model, write the paper's Figure 7 and a page to explore; one at a time."""
    out.mkdir(parents=True, exist_ok=True)
    for view in available():
        model = load(view.solid)
        known = known_object(model, view.solid)
        assert known is not None
        truth = rotvec_to_quat(torch.tensor(view.rotation, dtype=torch.float64))
        image = Image.fromarray(known.picture(truth.numpy(), size=224))
        image.save(out / f"{view.name}-input.png")
        generator = torch.Generator().manual_seed(seed)
        with torch.inference_mode():
            posterior = model([image])
            answer = answers(posterior, generator=generator)[0]
            cloud = make_cloud(posterior, truth=truth, generator=generator)
        picture = save(ball(cloud, image=image, known=known, title=view.caption), out / f"{view.name}.png")
        page = write_page(
            out / f"{view.name}.html",
            page_data(cloud, image=image, known=known, title=f"Rotations that fit {view.caption}"),
        )
        predicted = as_unit_quat(answer.quaternion)
        yield Shown(
            view=view,
            answer=answer,
            error_deg=float(torch.rad2deg(geodesic_angle(predicted, truth))),
            nearest_gap_deg=_gap(answer),
            picture=picture,
            page=page,
        )


def _gap(answer: Answer) -> float | None:
    """Mean angle from each mode to its nearest neighbour."""
    if len(answer.modes) < 2:
        return None
    q = as_unit_quat([mode.quaternion for mode in answer.modes])
    angles = torch.rad2deg(geodesic_angle(q[:, None], q[None])) + 1e3 * torch.eye(len(q))
    return float(angles.min(-1).values.mean())


def sentence(shown: Shown) -> str:
    """The answer in words that a newcomer understands."""
    modes = shown.answer.modes
    if not modes:
        return "no rotation stands out: the model does not know this picture"
    shares = ", ".join(f"{100 * mode.share:.0f} %" for mode in modes[:6])
    if len(modes) == 1 and modes[0].kind == "point":
        return f"one rotation, known to within {modes[0].radius_deg:.1f} degrees; {shown.error_deg:.1f} degrees from the truth"
    if all(mode.kind == "curve" for mode in modes):
        return (
            f"{_count(len(modes), 'curve')} of rotations ({shares}): the picture does not tell the turn about an axis"
        )
    gap = f", {shown.nearest_gap_deg:.0f} degrees apart" if shown.nearest_gap_deg is not None else ""
    return f"{_count(len(modes), 'mode')} ({shares}){gap}: the picture leaves a choice"


def _count(n: int, noun: str) -> str:
    words = ("no", "one", "two", "three", "four", "five", "six")
    return f"{words[n] if n < len(words) else n} {noun}{'' if n == 1 else 's'}"
