"""Show what a distribution over rotations is: ask the bundled models about a few pictures."""

import argparse
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from aquamam.cli.options import add

if TYPE_CHECKING:
    from aquamam.posterior.answers import Answer

EXAMPLES = """\
  aquamam demo
  aquamam demo --out somewhere --seed 1
"""


@dataclass(frozen=True)
class View:
    """A picture to show: a solid under a rotation vector, what a person sees in it, and what is true of it."""

    name: str
    solid: str
    rotation: tuple[float, float, float]
    caption: str
    truth: str


VIEWS = (
    View("clear", "die", (0.5, 0.6, 0.2), "a die that shows three faces", "one rotation gives this picture"),
    View(
        "five",
        "die",
        (0.0, 0.0, 0.3),
        "a die that shows only the five",
        "four rotations give exactly this picture, 90 degrees apart",
    ),
    View(
        "cylinder",
        "cylinder",
        (0.4, 0.0, 0.5),
        "a cylinder",
        "any turn about its axis, and end for end, gives this picture",
    ),
)


@dataclass(frozen=True, kw_only=True)
class Shown:
    """A view and what the model said of it."""

    view: View
    answer: "Answer"
    error_deg: float  # from the prediction to the rendered rotation
    nearest_gap_deg: float | None  # between neighbouring modes, where there are several
    picture: Path
    page: Path


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("out/demo"), metavar="DIR", help="folder to write")
    add(parser, "--seed")


def run(args: argparse.Namespace) -> None:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # see reproduce
    print("How is the object in the picture rotated? Several answers may fit, so the answer is a distribution.\n")
    for shown in show(args.out, args.seed):
        density, ceiling = shown.answer.log_density, shown.answer.ceiling
        print(f"{shown.view.caption} (in truth {shown.view.truth})\n  {sentence(shown)}")
        print(f"  ln p of the prediction {density:.2f} (knowing nothing -2.29, ceiling {ceiling:.2f})")
        print(f"  picture {shown.picture}, page to explore {shown.page}\n")
    print("Next: aquamam predict YOUR_IMAGE.png")


def show(out: Path, seed: int = 0) -> Iterator[Shown]:
    """Render each view, ask the model, write the paper's Figure 7 and a page to explore; one at a time."""
    import torch
    from PIL import Image

    from aquamam.checkpoints.checkpoint import load
    from aquamam.geometry.rotations import as_unit_quat, geodesic_angle, rotvec_to_quat
    from aquamam.pages.posterior import page_data, write_page
    from aquamam.plotting import ball, known_object, make_cloud, save
    from aquamam.posterior.answers import answers

    out.mkdir(parents=True, exist_ok=True)
    for view in VIEWS:
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
        data = page_data(cloud, image=image, known=known, title=f"Rotations that fit {view.caption}")
        modes = as_unit_quat([mode.quaternion for mode in answer.modes] or torch.zeros(0, 4))
        gaps = torch.rad2deg(geodesic_angle(modes[:, None], modes[None])) + 1e3 * torch.eye(len(modes))
        yield Shown(
            view=view,
            answer=answer,
            error_deg=float(torch.rad2deg(geodesic_angle(as_unit_quat(answer.quaternion), truth))),
            nearest_gap_deg=float(gaps.min(-1).values.mean()) if len(modes) > 1 else None,
            picture=save(ball(cloud, image=image, known=known, title=view.caption), out / f"{view.name}.png"),
            page=write_page(out / f"{view.name}.html", data),
        )


def sentence(shown: Shown) -> str:
    """The answer in words that a newcomer understands."""
    modes = shown.answer.modes
    if not modes:
        return "no rotation stands out: the model does not know this picture"
    if len(modes) == 1 and modes[0].kind == "point":
        within = f"known to within {modes[0].radius_deg:.1f} degrees"
        return f"one rotation, {within}; {shown.error_deg:.1f} degrees from the truth"
    shares = ", ".join(f"{100 * mode.share:.0f} %" for mode in modes[:6])
    several = "" if len(modes) == 1 else "s"
    if all(mode.kind == "curve" for mode in modes):
        return f"{len(modes)} curve{several} of rotations ({shares}): the picture does not tell the turn about an axis"
    gap = f", {shown.nearest_gap_deg:.0f} degrees apart" if shown.nearest_gap_deg is not None else ""
    return f"{len(modes)} mode{several} ({shares}){gap}: the picture leaves a choice"
