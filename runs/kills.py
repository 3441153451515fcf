"""SIGKILL at random moments costs nothing: python runs/kills.py FOLDER [render train fit] [--kills 5] [--seed 0]

Runs each command once undisturbed and once killed again and again, and compares what the two leave: files of rendering
byte for byte, of training and fitting every tensor of the model and what it says of its calibration.
"""

import argparse
import random
import subprocess
import sys
import time
from pathlib import Path

import torch

from aquamam.checkpoints.checkpoint import load_tensors

OFTEN = "--set checkpoint_seconds=1 --set validation_size=100 --set threads=1"
COMMANDS = {
    "render": "render die --size 64 --split train=60000,test=2000 --workers 1",
    "train": "train die-small --data render:die --steps 200 --set validate_every=20 --set dim=32 --set hidden=64 "
    f"--set heads=2 {OFTEN}",
    "fit": f"fit die --steps 20 --held-out 120 --views 6 {OFTEN}",  # from the bundled weights
}


def start(command: str, out: Path) -> "subprocess.Popen[bytes]":
    words = [sys.executable, "-m", "aquamam", *command.split(), "--out", str(out)]
    with open(out.with_suffix(".log"), "ab") as log:
        return subprocess.Popen(words, stdout=log, stderr=log)


def left(name: str, out: Path) -> dict[str, object]:
    """What a command leaves that must not depend on when it was killed."""
    if name == "render":
        return {str(file.relative_to(out)): file.read_bytes() for file in out.rglob("*") if file.is_file()}
    tensors, about = load_tensors(out / ("model.safetensors" if name == "fit" else "best.safetensors"))
    return {"calibration": about.get("calibration"), "config": about["config"], **tensors}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("commands", nargs="*", default=list(COMMANDS))
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    moments = random.Random(args.seed)
    for name in args.commands:
        whole, parts = args.folder / f"{name}-whole", args.folder / f"{name}-parts"
        begun = time.monotonic()
        if start(COMMANDS[name], whole).wait():
            raise SystemExit(f"{name} failed; {whole.with_suffix('.log')} says why")
        seconds, kills, killed = time.monotonic() - begun, [], True
        while killed:
            process = start(COMMANDS[name], parts)
            try:
                wait = moments.uniform(0.1, 0.3) * seconds if len(kills) < args.kills else None
                process.wait(wait)
                killed = False
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                kills.append(round(wait or 0, 1))
        one, other = left(name, whole), left(name, parts)
        same = one.keys() == other.keys() and all(
            torch.equal(one[k], other[k]) if isinstance(one[k], torch.Tensor) else one[k] == other[k] for k in one
        )
        told = f"{len(one)} things {'equal' if same else 'DIFFER'}"
        print(f"{name}: {seconds:.0f} s undisturbed; killed after {kills} s; {told}")
        if not same or process.returncode:
            raise SystemExit(1)


if __name__ == "__main__":
    main()
