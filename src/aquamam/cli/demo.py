"""Show what a distribution over rotations is: ask the bundled models about a few pictures.

aquamam demo
aquamam demo --out somewhere --seed 1
"""

import argparse
from pathlib import Path

from aquamam.cli.main import add

# name -> a model, its solid, the rotation vector of a plain render or the number of a picture in real light, what a
# person sees, and what is true of it
VIEWS: dict[str, tuple[str, str, tuple[float, float, float] | int, str, str]] = {
    "light": ("die", "die", 17, "a die in real light", "one rotation gives this picture"),
    "clear": ("die-plain", "die", (0.5, 0.6, 0.2), "a render of three faces of a die", "one rotation gives it"),
    "five": ("die-plain", "die", (0.0, 0.0, 0.3), "a render of only the five", "four rotations do, 90 degrees apart"),
    "cylinder": ("cylinder-plain", "cylinder", (0.4, 0.0, 0.5), "a cylinder", "any about its axis do, and end for end"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("out/demo"), metavar="DIR", help="folder to write")
    add(parser, "--seed")


def run(args: argparse.Namespace) -> None:
    """Of each view write NAME-input.png, the paper's Figure 7 as NAME.png, and the page NAME.html."""
    import torch
    from PIL import Image

    from aquamam.checkpoints.checkpoint import load
    from aquamam.data.loaders.photoreal import PhotorealDataset
    from aquamam.geometry.rotations import as_unit_quat, geodesic_angle, multiply, rotvec_to_quat
    from aquamam.pages.posterior import page_data, write_page
    from aquamam.plotting import ball, known_object, make_cloud, save
    from aquamam.rendering import solids

    print("How is the object in the picture rotated? Several answers may fit, so the answer is a distribution.\n")
    args.out.mkdir(parents=True, exist_ok=True)
    real = PhotorealDataset()
    for name, (model_name, solid, view, caption, fact) in VIEWS.items():
        model = load(model_name)
        known = known_object(model, solid)
        assert known is not None
        if isinstance(view, int):
            truth, image = torch.from_numpy(real.rotations(view)[0]), Image.fromarray(real.image(view))
        else:
            truth = rotvec_to_quat(torch.tensor(view, dtype=torch.float64))
            image = Image.fromarray(known.picture(truth.numpy(), size=224))
        image.save(args.out / f"{name}-input.png")
        with torch.inference_mode():
            cloud = make_cloud(model([image]), truth=truth, generator=torch.Generator().manual_seed(args.seed))
        figure, page = args.out / f"{name}.png", args.out / f"{name}.html"
        save(ball(cloud, image=image, known=known, title=caption), figure)
        write_page(page, page_data(cloud, image=image, known=known, title=f"Rotations that fit {caption}"))
        answer, alike = cloud.answer, model.view_classes
        if alike is not None:
            fitting = multiply(truth, alike.elements[alike.members(truth)])
        else:
            fitting = solids.solid(solid).symmetry.equivalents(truth, 3600)
        error = torch.rad2deg(geodesic_angle(as_unit_quat(answer.quaternion), fitting).min())
        nearest = "the truth" if len(fitting) == 1 else "the nearest of them"
        print(f"{caption} (in truth {fact})\n  {answer.words}; the prediction is {error:.1f} degrees from {nearest}")
        print(f"  its ln p is {answer.log_density:.2f} (knowing nothing -2.29, ceiling {answer.ceiling:.2f})")
        print(f"  picture {figure}, page to explore {page}\n")
    print("Next: aquamam predict YOUR_IMAGE.png")
