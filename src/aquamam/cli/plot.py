"""Draw the posterior of an image (PNG, SVG, PDF, or an HTML page), or a run's learning curve."""

import argparse
from pathlib import Path
from typing import Any

from aquamam.cli.crops import add_crop_options, camera_of
from aquamam.cli.options import add, generator_for, load_model, whole
from aquamam.errors import InputError

EXAMPLES = """\
  aquamam plot die.png -o posterior.html               a page: rotate the ball, click a rotation to see the pose
  aquamam plot die.png -o ball.png --truth 0,0,0,1     the paper's Figure 7
  aquamam plot part.jpg -o map.pdf --kind mollweide --model runs/part --object part.obj
  aquamam plot die.png -o bins.svg --kind marginals --theme dark
  aquamam plot photo.jpg -o pose.png --model parts/duck --box 120,80,64,48 --camera camera.yaml
  aquamam plot runs/die -o curve.png                   a training run's learning curve
A quaternion that begins with a minus sign needs an equals sign: --truth=-0.5,0.5,0.5,0.5"""

KINDS = ("ball", "mollweide", "marginals", "pose", "curve")
POINTS = ("ball", "page", "mollweide")
# option -> the kinds of picture that it changes; None is its default, so that the rest can be told of it
HEEDED = {"axis": ("mollweide",), "object": POINTS}
HEEDED |= dict.fromkeys(("samples", "uniform", "box", "camera"), (*POINTS, "pose"))
HEEDED |= {"truth": (*POINTS, "marginals"), "theme": KINDS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    kinds = "ball: rotation vectors by density (default); mollweide: where an axis points; marginals: the three "
    kinds += (
        "distributions over bins; pose: contours in the photograph (default with --box and --camera for models that "
    )
    kinds += "tell poses); curve: learning curve of a run"
    add(parser, "image", help="an image file; or a run's folder or log.jsonl")
    add(parser, "--out", default=Path("posterior.html"), help="file to write: .html, .png, .svg or .pdf")
    parser.add_argument("--kind", choices=KINDS, help=kinds)
    add(parser, "--model", "--device", "--seed")
    parser.add_argument("--truth", type=quaternion, metavar="QX,QY,QZ,QW", help="the true rotation, marked 0")
    parser.add_argument("--object", metavar="OBJECT", help="solid or mesh file to pose (default: the model's)")
    parser.add_argument("--axis", choices=["x", "y", "z"], help="of mollweide (default: of revolution, or z)")
    parser.add_argument("--samples", type=whole(0), metavar="N", help="drawn from the posterior (default: 499)")
    parser.add_argument("--uniform", type=whole(0), metavar="N", help="uniform rotations (default: 500)")
    parser.add_argument("--theme", choices=["light", "dark"], help="of pictures (default: light)")
    add_crop_options(parser)
    parser.add_argument("--title", default="", help="above the picture (default: the image's name)")


def quaternion(text: str) -> list[float]:
    """Four numbers qx,qy,qz,qw."""
    try:
        x, y, z, w = map(float, text.split(","))
    except ValueError:
        raise InputError(f"must be four numbers qx,qy,qz,qw, got {text!r}; try 0,0,0,1") from None
    return [x, y, z, w]


def run(args: argparse.Namespace) -> None:
    from aquamam.plotting.style import FORMATS, save

    suffix, source = args.out.suffix.lower(), Path(args.image)
    if suffix not in (".html", *FORMATS):
        raise InputError(f"--out must end in .html, {', '.join(FORMATS)}, got {args.out.name}.")
    is_run = source.suffix == ".jsonl" or (source / "log.jsonl").is_file()
    kind = args.kind or ("curve" if is_run else "ball")
    if suffix == ".html" and kind != "ball":
        png = f"{args.out.stem}.png"
        raise InputError(f"the page shows the ball; for --kind {kind} write a picture, for example {png}.")
    kind = "page" if suffix == ".html" else kind
    given = {name: getattr(args, name) for name in HEEDED if getattr(args, name) is not None}
    if idle := next((name for name in given if kind not in HEEDED[name]), None):
        raise InputError(f"--{idle} does nothing for {'a page' if kind == 'page' else f'--kind {kind}'}; drop it.")
    if kind == "curve":
        from aquamam.plotting.curves import learning_curve, read_log

        name = source.name if source.is_dir() else source.absolute().parent.name
        save(learning_curve(read_log(source), title=args.title or name, **given), args.out)
    else:
        draw_posterior(args, kind, given)
    print(args.out)


def draw_posterior(args: argparse.Namespace, kind: str, given: dict[str, Any]) -> None:
    """Write the picture or the page; what is not given has the plotting functions' own defaults."""
    import torch

    from aquamam.geometry.rotations import as_unit_quat
    from aquamam.network.images import read_image
    from aquamam.network.poses import look
    from aquamam.pages.posterior import page_data, write_page
    from aquamam.plotting import ball, known_object, make_cloud, marginals, mollweide, save

    truth = as_unit_quat(args.truth, "--truth") if "truth" in given else None
    theme, counts = (
        {name: given[name] for name in names if name in given} for names in (["theme"], ["samples", "uniform"])
    )
    picture, model, seen = read_image(args.image), load_model(args.model, args.device), None
    with torch.inference_mode():
        if args.box is not None:
            seen = look(model, picture, args.box, camera_of(args))
            whole, picture = picture, seen.crop
        elif args.camera is not None or kind == "pose":
            raise InputError("a pose is drawn in a box; give --box X,Y,W,H and --camera.")
        posterior = model([picture]) if seen is None else seen.rotation
        if kind == "marginals":
            save(marginals(posterior, at=truth, title=args.title, **theme), args.out)
            return
        generator = generator_for(model, args.seed)
        cloud = make_cloud(posterior, truth=truth, symmetry=model.symmetry, generator=generator, **counts)
    known, name = known_object(model, args.object), args.title or Path(args.image).name
    if kind == "page":
        write_page(args.out, page_data(cloud, image=picture, known=known, title=f"Rotations that fit {name}"))
    elif seen is not None and (kind == "pose" or (args.kind is None and seen.poses is not None)):
        mesh = None if known is None else known.mesh
        save(draw_pose(args, seen, whole, cloud=cloud, mesh=mesh, title=name, **theme), args.out)
    elif kind == "ball":
        save(ball(cloud, image=picture, known=known, title=name, **theme), args.out)
    else:
        axis = args.axis or (known.axis if known is not None else "z")
        save(mollweide(cloud, axis=axis, image=picture, title=args.title, **theme), args.out)


def draw_pose(args: argparse.Namespace, seen: Any, picture: Any, **options: Any) -> Any:
    """The photograph with the poses in a box."""
    import torch

    from aquamam.plotting import overlay

    camera = camera_of(args)
    if camera is None or seen.poses is None:
        raise InputError("a pose needs --camera and a model that tells poses; try --kind ball.")
    (found,) = seen.poses.hypotheses(generator=torch.Generator().manual_seed(args.seed))
    return overlay(picture, args.box, camera, found, part=seen.part, **options)
