"""Predict the rotation that an image shows, ask how sure that is, and write pictures of the posterior.

python examples/predict.py                     the bundled die, seen with only its five
python examples/predict.py IMAGE MODEL         your image, a bundled model's name or a checkpoint's path
"""

import sys
from pathlib import Path

import torch
from PIL import Image

import aquamam
from aquamam.network.images import read_image
from aquamam.pages.posterior import page_data, write_page
from aquamam.plotting import ball, known_object, make_cloud, save
from aquamam.posterior.answers import answers
from aquamam.rendering.render import render
from aquamam.rendering.solids import solid


def main(image: str | None = None, model_name: str = "die", out: str = "out/predict") -> None:
    model = aquamam.load(model_name)
    # the five faces the camera: four rotations give this image, and the posterior should know all of them
    picture = read_image(image) if image else Image.fromarray(render(solid("die").mesh, [0, 0, 0, 1]))

    with torch.no_grad():
        posterior = model([picture])  # a torch.distributions.Distribution over rotations
        (answer,) = answers(posterior, samples=1000, generator=torch.Generator().manual_seed(0))
        cloud = make_cloud(posterior, generator=torch.Generator().manual_seed(0))

    print(f"quaternion xyzw  {', '.join(f'{x:+.4f}' for x in answer.quaternion)}")
    print(f"log density      {answer.log_density:.2f} (uniform -2.29, ceiling {answer.ceiling:.2f})")
    print(f"within 5 deg     {answer.shares[5]:.0%} of the probability")
    print(f"in words         {answer.words}")
    for number, mode in enumerate(answer.modes, start=1):
        q = ", ".join(f"{x:+.4f}" for x in mode.quaternion)
        print(f"mode {number}: {mode.share:4.0%} at ({q}), a {mode.kind} of {mode.radius_deg:.1f} degrees")

    known = known_object(model)
    print(save(ball(cloud, image=picture, known=known), Path(out) / "ball.png"))
    print(write_page(Path(out) / "posterior.html", page_data(cloud, image=picture, known=known)))


if __name__ == "__main__":
    main(*sys.argv[1:])
