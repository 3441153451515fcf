"""Every comparison in one run: python -m benchmarks [NAME ...] [--rounds 5] [--cpu] [--write].

Each part runs in a process of its own, so that its figures do not depend on the memory that another part left behind. Prints a table and
one JSON line a figure; --write puts the table into benchmarks/README.md with machine, commit and date.
"""

import argparse
import dataclasses
import io
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path

from benchmarks import core, growth, startup
from benchmarks.measure import Figure, machine, report, use_cpu_time

PARTS: dict[str, Callable[[int], list[Figure]]] = {
    "rotations": lambda rounds: core.likelihoods_and_samples(2 * rounds, share=10),
    "predictions": core.predictions,
    "encoder": core.encoder_share,
    "training": lambda rounds: [core.training_step(2 * rounds)],
    "toy": lambda rounds: [core.toy_training(rounds)],
    "ipdf": core.against_ipdf,
    "startup": startup.figures,
    "memory": lambda rounds: [startup.million()],
    "growth": growth.figures,
}

HEAD = """# Benchmarks

`{command}` made this table: interleaved medians of one run, warm-up first, each part in a process of its own. "limit" is the share of the
rate of a large float32 matrix product, measured in the same run, at which the needed FLOPs were done. The other sides are in `core.py` and `plain.py`: plain,
honest implementations of the paper's pseudo-code. `rendering.py` and `reading.py` measure images per second.
"""


def in_a_process(part: str, options: list[str]) -> list[Figure]:
    """What `python -m benchmarks PART` says."""
    print(part, file=sys.stderr)
    out = subprocess.run([sys.executable, "-m", "benchmarks", part, *options], check=True, stdout=subprocess.PIPE)
    names = {field.name for field in dataclasses.fields(Figure)}
    told = [json.loads(line) for line in out.stdout.decode().splitlines() if line.startswith("{")]
    return [Figure(**{key: value for key, value in row.items() if key in names}) for row in told]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--cpu", action="store_true", help="CPU seconds instead of the clock's: for a machine that others use too"
    )
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.cpu:
        use_cpu_time()
    parts = args.parts or list(PARTS)
    if len(parts) == 1:
        figures = PARTS[parts[0]](args.rounds)
    else:
        options = ["--rounds", str(args.rounds), *["--cpu"] * args.cpu]
        figures = [figure for part in parts for figure in in_a_process(part, options)]
    report(figures)
    if args.write:
        text = io.StringIO()
        with redirect_stdout(text):
            report(figures)
        facts = ", ".join(f"{key} {value}" for key, value in machine().items())
        (Path(__file__).parent / "README.md").write_text(
            f"{HEAD.format(command=shlex.join(['python', '-m', 'benchmarks', *sys.argv[1:]]))}\nMeasured on: {facts}.\n\n```\n{text.getvalue()}```\n"
        )


if __name__ == "__main__":
    main()
