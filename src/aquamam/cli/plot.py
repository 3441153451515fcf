"""`aquamam plot`: pictures of a posterior, a page to explore it, and learning curves."""

import argparse
from pathlib import Path
from typing import Any

from aquamam.cli.options import seed

HELP = "draw the posterior of an image (PNG, SVG, PDF, or an HTML page), or a run's learning curve"
EXAMPLES = """\
  aquamam plot die.png -o posterior.html               a page: turn the ball, click a rotation to see the pose
  aquamam plot die.png -o ball.png --truth 0,0,0,1     the paper's Figure 7
  aquamam plot part.jpg -o map.pdf --kind mollweide --model runs/part --object part.obj
  aquamam plot die.png -o bins.svg --kind marginals --theme dark
  aquamam plot runs/die -o curve.png                   a training run's learning curve
A quaternion that begins with a minus sign needs an equals sign: --truth=-0.5,0.5,0.5,0.5"""

KINDS = ("ball", "mollweide", "marginals", "curve")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    from aquamam.cli.predict import add_model_arguments

    parser.add_argument("image", metavar="IMAGE", help="an image file; or a run's folder or log.jsonl")
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("posterior.html"), metavar="FILE",
        help="file to write: .html, .png, .svg or .pdf (default: posterior.html)",
    )  # fmt: skip
    parser.add_argument(
        "--kind", choices=KINDS,
        help="ball: rotation vectors by density (default); mollweide: where an axis points; marginals: the three "
        "distributions over bins; curve: learning curve of a run",
    )  # fmt: skip
    add_model_arguments(parser)
    parser.add_argument("--truth", metavar="QX,QY,QZ,QW", help="the true rotation, marked 0")
    parser.add_argument(
        "--object", metavar="OBJECT", help="a solid or a mesh file to show poses with (default: the model's)"
    )
    parser.add_argument(
        "--axis", choices=["x", "y", "z"], help="of mollweide: the object's axis (default: of revolution, or z)"
    )
    parser.add_argument("--samples", type=int, default=499, metavar="N", help="drawn from the posterior (default: 499)")
    parser.add_argument("--uniform", type=int, default=500, metavar="N", help="uniform rotations (default: 500)")
    parser.add_argument("--theme", choices=["light", "dark"], default="light", help="of pictures (default: light)")
    parser.add_argument("--seed", type=seed, default=0, help="of the drawn rotations (default: 0)")
    parser.add_argument("--title", default="", help="above the picture (default: the image's name)")


def run(args: argparse.Namespace) -> int:
    from aquamam.errors import InputError
    from aquamam.plotting.style import FORMATS

    suffix = args.out.suffix.lower()
    kind = args.kind or ("curve" if is_run(args.image) else "ball")
    if suffix not in (".html", *FORMATS):
        raise InputError(f"--out must end in .html, {', '.join(FORMATS)}, got {args.out.name}.")
    if suffix == ".html" and kind != "ball":
        raise InputError(
            f"the page shows the ball; for --kind {kind} write a picture, for example {args.out.stem}.png."
        )
    if idle := idle_options(args, kind, suffix == ".html"):
        raise InputError(f"{idle} does nothing for {'a page' if suffix == '.html' else f'--kind {kind}'}; drop it.")
    if kind == "curve":
        plot_curve(args)
    else:
        plot_posterior(args, kind, suffix == ".html")
    print(args.out)
    return 0


def idle_options(args: argparse.Namespace, kind: str, page: bool) -> str | None:
    """The first option that was given but cannot show."""
    drawn = kind in ("ball", "mollweide")
    heeded = {
        "axis": kind == "mollweide",
        "object": drawn,
        "samples": drawn,
        "uniform": drawn,
        "truth": kind != "curve",
        "theme": not page,
    }
    defaults = {"samples": 499, "uniform": 500, "theme": "light"}
    return next(
        (f"--{name}" for name, ok in heeded.items() if not ok and getattr(args, name) != defaults.get(name)), None
    )


def is_run(path: str) -> bool:
    """Whether a path is a training run rather than an image."""
    return path.endswith(".jsonl") or (Path(path) / "log.jsonl").is_file()


def plot_curve(args: argparse.Namespace) -> None:
    from aquamam.plotting import learning_curve, read_log, save

    path = Path(args.image)
    name = path.name if path.is_dir() else path.absolute().parent.name
    save(learning_curve(read_log(path), title=args.title or name, theme=args.theme), args.out)


def plot_posterior(args: argparse.Namespace, kind: str, page: bool) -> None:
    import torch

    from aquamam.cli.predict import load_model
    from aquamam.network.images import read_image
    from aquamam.plotting import ball, known_object, make_cloud, marginals, mollweide, save

    truth = parse_quaternion(args.truth) if args.truth else None
    picture = read_image(args.image)
    model = load_model(args)
    name = args.title or Path(args.image).name
    with torch.inference_mode():
        posterior = model([picture])
        if kind == "marginals":
            save(marginals(posterior, at=truth, title=args.title, theme=args.theme), args.out)
            return
        generator = torch.Generator(device=next(model.parameters()).device).manual_seed(args.seed)
        cloud = make_cloud(
            posterior,
            samples=args.samples,
            uniform=args.uniform,
            truth=truth,
            symmetry=model.symmetry,
            generator=generator,
        )
    known = known_object(model, args.object)
    if page:
        from aquamam.pages.posterior import page_data, write_page

        write_page(args.out, page_data(cloud, image=picture, known=known, title=f"Rotations that fit {name}"))
    elif kind == "ball":
        save(ball(cloud, image=picture, known=known, title=name, theme=args.theme), args.out)
    else:
        axis = args.axis or (known.axis if known is not None else "z")
        figure = mollweide(cloud, axis=axis, image=picture, title=args.title, theme=args.theme)
        save(figure, args.out)


def parse_quaternion(text: str) -> Any:
    """A quaternion xyzw from "qx,qy,qz,qw"."""
    from aquamam.errors import InputError
    from aquamam.geometry.rotations import as_unit_quat

    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if len(values) != 4:
        raise InputError(f"--truth must be four numbers qx,qy,qz,qw, got {text!r}; try --truth 0,0,0,1.")
    return as_unit_quat(values, "--truth")
