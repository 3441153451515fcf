"""`aquamam demo`: the main job in under a minute, told to someone who sees it for the first time."""

import argparse
import os
from pathlib import Path
from typing import Any

from aquamam.cli.options import seed

HELP = "Show what a distribution over rotations is: ask the bundled models about a few pictures, or train a toy model."
EXAMPLES = """  aquamam demo
  aquamam demo --toy --seed 1             train a small model for a few seconds instead
"""
SHOWN = 4  # rotations of a viewpoint that get a line of their own


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--out", type=Path, default=Path("out/demo"), help="folder to write (default: out/demo)")
    parser.add_argument("--seed", type=seed, default=0, help="of everything random (default: 0)")
    parser.add_argument("--toy", action="store_true", help="train a toy model on the spot; needs no bundled model")
    parser.add_argument("--steps", type=int, default=400, help="training steps of the toy (default: 400)")


def run(args: argparse.Namespace) -> int:
    os.environ.setdefault("GOMP_SPINCOUNT", "10000")  # see reproduce
    from aquamam.cli import showcase

    return run_toy(args) if args.toy or not showcase.available() else run_showcase(args)


def run_showcase(args: argparse.Namespace) -> int:
    from aquamam.cli import showcase

    print("How is the object in the picture turned? Several answers may fit, so the answer is a distribution.\n")
    for shown in showcase.show(args.out, args.seed):
        print(f"{shown.view.caption} (in truth {shown.view.truth})\n  {showcase.sentence(shown)}")
        print(
            f"  ln p of the prediction {shown.answer.log_density:.2f} (knowing nothing -2.29, ceiling {shown.answer.ceiling:.2f})"
        )
        print(f"  picture {shown.picture}, page to explore {shown.page}\n")
    print("Next: aquamam predict YOUR_IMAGE.png   or   aquamam demo --toy")
    return 0


def run_toy(args: argparse.Namespace) -> int:
    from aquamam.reproduce import toy_demo as demo
    from aquamam.reproduce.toy import toy_pairs

    print(INTRODUCTION)
    result = demo.run(args.out, seed=args.seed, steps=args.steps)
    print("\n".join(describe(result, toy_pairs())))
    print(f"\nA picture of the six distributions: {args.out / 'demo.png'}")
    print("Next: aquamam reproduce toy   (the paper's experiment, to five digits)")
    return 0


INTRODUCTION = """\
A picture of an object does not always tell how it is turned: seen from some sides, several rotations look the same.
So the answer is a distribution over rotations. Here are six viewpoints, from which 1, 2, 4, 8, 16 and 32 rotations
look the same; a small model sees examples and learns, for each viewpoint, how probable every rotation is.
"""


def describe(result: dict[str, Any], pairs: Any) -> list[str]:
    """What was learned, line by line."""
    from aquamam.geometry.rotations import LOG_UNIFORM

    lines = [f"Learned in {result['seconds']:.0f} s. {result['samples']:,} rotations drawn from the model:", ""]
    for row in result["viewpoints"]:
        shares = [count / max(row["samples"], 1) for count in row["counts"]]
        truth = 1 / len(shares)
        plural = "rotation" if len(shares) == 1 else "rotations"
        lines.append(f"viewpoint {row['viewpoint']}: {len(shares)} {plural}, {100 * truth:.3g} % each in truth")
        for q, share in list(zip(pairs.of(row["viewpoint"]), shares))[:SHOWN]:
            lines.append(f"  {_rotation(q)}  {_bar(share)} {100 * share:5.1f} %")
        rest = shares[SHOWN:]
        if rest:
            lines.append(f"  and {len(rest)} more, {100 * min(rest):.1f} to {100 * max(rest):.1f} % each")
    lines += [
        "",
        f"mean log-likelihood   {result['log_likelihood']:.2f} of at most {result['ceiling']:.2f} with {result['bins']} bins "
        f"(knowing nothing: {LOG_UNIFORM:.2f})",
        f"mean distance         {result['mean_distance_deg']:.2f} degrees from a sample to the nearest true rotation",
        f"samples off           {result['wrong_sentences']} of {result['samples']:,} fell into no true rotation's cell",
    ]
    return lines


def _rotation(q: Any) -> str:
    from aquamam.geometry.rotations import quat_to_rotvec

    vector = quat_to_rotvec(q)
    angle = float(vector.norm())
    x, y, z = (vector / max(angle, 1e-12)).tolist()
    return f"{angle * 57.29577951:5.1f}° about ({x:+.2f}, {y:+.2f}, {z:+.2f})"


def _bar(share: float, width: int = 24) -> str:
    return ("█" * round(share * width)).ljust(width, "·")
