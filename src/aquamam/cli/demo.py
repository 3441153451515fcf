"""Show what a distribution over rotations is: ask the bundled models about a few pictures."""

import argparse
import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from aquamam.cli.options import add

if TYPE_CHECKING:
    from aquamam.posterior.answers import Answer

EXAMPLES = """\
  aquamam demo
  aquamam demo --out somewhere --seed 1
"""


class View(NamedTuple):
    """A picture to show: a solid under a rotation vector, what a person sees in it, and what is true of it."""

    solid: str
    rotation: tuple[float, float, float]
    caption: str
    truth: str


FOUR = "four rotations give exactly this picture, 90 degrees apart"
ROUND = "any rotation about its axis, and end for end, gives this picture"
VIEWS = {
    "clear": View("die", (0.5, 0.6, 0.2), "a die that shows three faces", "one rotation gives this picture"),
    "five": View("die", (0.0, 0.0, 0.3), "a die that shows only the five", FOUR),
    "cylinder": View("cylinder", (0.4, 0.0, 0.5), "a cylinder", ROUND),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("out/demo"), metavar="DIR", help="folder to write")
    add(parser, "--seed")


def run(args: argparse.Namespace) -> None:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # see reproduce
    print("How is the object in the picture rotated? Several answers may fit, so the answer is a distribution.\n")
    for name, view in VIEWS.items():
        answer, error_deg = show(view, args.out / name, args.seed)
        print(f"{view.caption} (in truth {view.truth})\n  {sentence(answer, error_deg)}")
        print(
            f"  ln p of the prediction {answer.log_density:.2f} (knowing nothing -2.29, ceiling {answer.ceiling:.2f})"
        )
        print(f"  picture {args.out / name}.png, page to explore {args.out / name}.html\n")
    print("Next: aquamam predict YOUR_IMAGE.png")


def show(view: View, out: Path, seed: int) -> tuple["Answer", float]:
    """Render a view, ask the model, write OUT-input.png, the paper's Figure 7 as OUT.png and a page as OUT.html.

    Returns the answer, and the angle in degrees from the prediction to the rendered rotation.
    """
    import torch
    from PIL import Image

    from aquamam.checkpoints.checkpoint import load
    from aquamam.geometry.rotations import as_unit_quat, geodesic_angle, rotvec_to_quat
    from aquamam.pages.posterior import page_data, write_page
    from aquamam.plotting import ball, known_object, make_cloud, save

    model = load(view.solid)
    known = known_object(model, view.solid)
    assert known is not None
    truth = rotvec_to_quat(torch.tensor(view.rotation, dtype=torch.float64))
    image = Image.fromarray(known.picture(truth.numpy(), size=224))
    out.parent.mkdir(parents=True, exist_ok=True)
    image.save(f"{out}-input.png")
    with torch.inference_mode():
        cloud = make_cloud(model([image]), truth=truth, generator=torch.Generator().manual_seed(seed))
    save(ball(cloud, image=image, known=known, title=view.caption), f"{out}.png")
    write_page(f"{out}.html", page_data(cloud, image=image, known=known, title=f"Rotations that fit {view.caption}"))
    error = geodesic_angle(as_unit_quat(cloud.answer.quaternion), truth)
    return cloud.answer, float(torch.rad2deg(error))


def sentence(answer: "Answer", error_deg: float) -> str:
    """The answer in words that a newcomer understands."""
    from aquamam.geometry.rotations import as_unit_quat
    from aquamam.posterior.modes import angles_deg

    modes = answer.modes
    if not modes:
        return "no rotation stands out: the model does not know this picture"
    if len(modes) == 1 and modes[0].kind == "point":
        return (
            f"one rotation, known to within {modes[0].radius_deg:.1f} degrees; {error_deg:.1f} degrees from the truth"
        )
    shares = ", ".join(f"{100 * mode.share:.0f} %" for mode in modes[:6])
    several = "" if len(modes) == 1 else "s"
    if all(mode.kind == "curve" for mode in modes):
        return f"{len(modes)} curve{several} of rotations ({shares}): the picture does not tell the turn about an axis"
    q = as_unit_quat([mode.quaternion for mode in modes])
    gap = f", {angles_deg(q, q).sort(-1).values[:, 1].mean():.0f} degrees apart" if several else ""
    return f"{len(modes)} mode{several} ({shares}){gap}: the picture leaves a choice"
