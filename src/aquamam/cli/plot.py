"""Draw the posterior of an image (PNG, SVG, PDF, or an HTML page), or a run's learning curve.

aquamam plot die.png -o posterior.html               a page: rotate the ball, click a rotation to see the pose
aquamam plot die.png -o ball.png --truth 0,0,0,1     the paper's Figure 7
aquamam plot part.jpg -o map.pdf --kind mollweide --model runs/part --object part.obj
aquamam plot die.png -o bins.svg --kind marginals
aquamam plot photo.jpg -o pose.png --model parts/duck --box 120,80,64,48 --camera camera.yaml
aquamam plot runs/die -o curve.png                   a training run's learning curve

A quaternion that begins with a minus sign needs an equals sign: --truth=-0.5,0.5,0.5,0.5
"""

import argparse
from pathlib import Path
from typing import Any

from aquamam.cli.main import add, given, load_model, numbers, whole
from aquamam.errors import InputError
from aquamam.files import write_text

KINDS = ("ball", "mollweide", "marginals", "pose", "curve")
POINTS = ("ball", "page", "mollweide")
# option -> the kinds of picture that it changes; None is its default, so that the rest can be told of it
HEEDED = {"axis": ("mollweide",), "object": POINTS}
HEEDED |= dict.fromkeys(("samples", "uniform", "box", "camera"), (*POINTS, "pose"))
HEEDED |= {"truth": (*POINTS, "marginals")}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    option = parser.add_argument
    kinds = "ball: rotation vectors by density (default); mollweide: where an axis points; marginals: the three "
    kinds += "distributions over bins; pose: contours in the photograph (default with --box and --camera for models "
    kinds += "that tell poses); curve: learning curve of a run"
    add(parser, "image", help="an image file; or a run's folder or log.jsonl")
    add(parser, "--out", default=Path("posterior.html"), help="file to write: .html, .png, .svg or .pdf")
    option("--kind", choices=KINDS, help=kinds)
    add(parser, "--model", "--device", "--seed")
    truth = numbers("qx,qy,qz,qw", "0,0,0,1")
    option("--truth", type=truth, metavar="QX,QY,QZ,QW", help="the true rotation, marked 0")
    option("--object", metavar="OBJECT", help="solid or mesh file to pose (default: the model's)")
    option("--axis", choices=["x", "y", "z"], help="of mollweide (default: of revolution, or z)")
    option("--samples", type=whole(0), metavar="N", help="drawn from the posterior (default: 499)")
    option("--uniform", type=whole(0), metavar="N", help="uniform rotations (default: 500)")
    add(parser, "--box", "--camera")
    option("--title", default="", help="above the picture (default: the image's name)")


def run(args: argparse.Namespace) -> None:
    from aquamam.plotting.curves import learning_curve, read_log
    from aquamam.plotting.style import FORMATS, save

    suffix, source = args.out.suffix.lower(), Path(args.image)
    if suffix not in (".html", *FORMATS):
        raise InputError(f"--out must end in .html, {', '.join(FORMATS)}, got {args.out.name}.")
    is_run = source.suffix == ".jsonl" or (source / "log.jsonl").is_file()
    kind = args.kind or ("curve" if is_run else "ball")
    if suffix == ".html":
        if kind != "ball":
            png = f"{args.out.stem}.png"
            raise InputError(f"the page shows the ball; for --kind {kind} write a picture, for example {png}.")
        kind = "page"
    if idle := next((name for name in given(args, *HEEDED) if kind not in HEEDED[name]), None):
        raise InputError(f"--{idle} does nothing for {'a page' if kind == 'page' else f'--kind {kind}'}; drop it.")
    if kind == "curve":
        name = source.name if source.is_dir() else source.absolute().parent.name
        drawn: Any = learning_curve(read_log(source), title=args.title or name)
    else:
        drawn = draw_posterior(args, kind)
    if kind == "page":
        write_text(args.out, drawn)
    else:
        save(drawn, args.out)
    print(args.out)


def draw_posterior(args: argparse.Namespace, kind: str) -> Any:
    """The picture, or the page's HTML; what is not given has the plotting functions' own defaults."""
    import torch

    from aquamam.data.cameras import read_camera
    from aquamam.geometry.rotations import as_unit_quat
    from aquamam.network.images import read_image
    from aquamam.network.poses import look
    from aquamam.pages.posterior import page_data, posterior_page
    from aquamam.plotting import ball, known_object, make_cloud, marginals, mollweide, overlay

    truth = None if args.truth is None else as_unit_quat(args.truth, "--truth")
    whole, model = read_image(args.image), load_model(args.model, args.device)
    camera, picture, seen = args.camera and read_camera(args.camera), whole, None
    with torch.inference_mode():
        if args.box is not None:
            seen = look(model, whole, args.box, camera)
            picture = seen.crop
        elif camera is not None or kind == "pose":
            raise InputError("a pose is drawn in a box; give --box X,Y,W,H and --camera.")
        posterior = model([picture]) if seen is None else seen.rotation
        if kind == "marginals":
            return marginals(posterior, at=truth, title=args.title)
        drawn = {"symmetry": model.symmetry, "generator": model.generator(args.seed)}
        cloud = make_cloud(posterior, truth=truth, **drawn, **given(args, "samples", "uniform"))
    known, name = known_object(model, args.object), args.title or Path(args.image).name
    if kind == "page":
        return posterior_page(page_data(cloud, image=picture, known=known, title=f"Rotations that fit {name}"))
    if kind == "mollweide":
        axis = args.axis or (known.axis if known is not None else "z")
        return mollweide(cloud, axis=axis, image=picture, title=args.title)
    if kind == "pose" or (args.kind is None and seen is not None and seen.poses is not None):
        if camera is None or seen is None or seen.poses is None or seen.part is None:
            raise InputError("a pose needs --camera and a model that tells poses; try --kind ball.")
        (found,) = seen.poses.hypotheses(generator=torch.Generator().manual_seed(args.seed))
        mesh = None if known is None else known.mesh
        return overlay(whole, args.box, camera, found, part=seen.part, mesh=mesh, cloud=cloud, title=name)
    return ball(cloud, image=picture, known=known, title=name)
