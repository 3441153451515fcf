"""Every comparison in one run: python -m benchmarks [NAME ...] [--rounds 5] [--cpu] [--write].

Each part runs in a process of its own, so that its figures do not depend on the memory that another part left behind.
Prints a table and one JSON line a figure; --write puts them into benchmarks/README.md and figures.jsonl, with machine,
commit and date.
"""

import argparse
import dataclasses
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from benchmarks import busy, core, growth, startup
from benchmarks.measure import Figure, json_lines, machine, table, use_cpu_time

PARTS: dict[str, Callable[[int], list[Figure]]] = {
    "rotations": lambda rounds: core.likelihoods_and_samples(2 * rounds),
    "predictions": core.predictions,
    "poses": lambda rounds: [core.pose_over_rotation(20 * rounds)],
    "training": lambda rounds: [core.training_step(2 * rounds)],
    "toy": lambda rounds: [core.toy_training(rounds)],
    "ipdf": core.against_ipdf,
    "busy": busy.figures,
    "startup": startup.figures,
    "memory": lambda rounds: [startup.million()],
    "growth": growth.figures,
}

HEAD = """# Benchmarks

`{command}` made this table: interleaved medians of one run, warm-up first, each part in a process of its own. "engine"
is what ran our side. The other sides are in `core.py` and `plain.py`: plain, honest implementations of the paper's
pseudo-code. `rendering.py` and `reading.py` measure images per second, `serving.py` the service under load.

Measured on: {facts}. Seconds, or the unit that the row names; `figures.jsonl` has every digit.

{table}
"""


def in_a_process(part: str, options: list[str]) -> list[Figure]:
    """What `python -m benchmarks PART` says."""
    print(part, file=sys.stderr)
    out = subprocess.run([sys.executable, "-m", "benchmarks", part, *options], check=True, stdout=subprocess.PIPE)
    names = {field.name for field in dataclasses.fields(Figure)}
    told = [json.loads(line) for line in out.stdout.decode().splitlines() if line.startswith("{")]
    found = [Figure(**{key: value for key, value in row.items() if key in names}) for row in told]
    print(table(found), file=sys.stderr)  # a run of all takes long, and may be stopped
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], default=[], help=", ".join(PARTS))
    parser.add_argument("--rounds", type=int, default=5)
    cpu = "CPU seconds instead of the clock's: for a machine that others use too"
    parser.add_argument("--cpu", action="store_true", help=cpu)
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
    print(table(figures), json_lines(figures), sep="\n")
    if args.write:
        here = Path(__file__).parent
        command = shlex.join(["python", "-m", "benchmarks", *sys.argv[1:]])
        facts = ", ".join(f"{key} {value}" for key, value in machine().items())
        readme = HEAD.format(command=command, facts=facts, table=table(figures))
        (here / "README.md").write_text(readme)
        (here / "figures.jsonl").write_text(json_lines(figures) + "\n")


if __name__ == "__main__":
    main()
