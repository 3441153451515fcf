"""Time predictions of models on this computer: one line a model and engine, to be sent in.

aquamam bench
aquamam bench die part/ --threads 1 --engine onnx

Random images of the size that a model reads, greedy predictions, medians after a warm-up; memory is the most that the
process has held.
"""

import argparse
import json
import platform
import statistics
import sys
import time
from typing import Any

from aquamam.cli.main import add, columns, load_model

SECONDS = 2.0  # of measuring, for each number
BATCH = 32


def add_arguments(parser: argparse.ArgumentParser) -> None:
    what = "a bundled model's name, a checkpoint, or an exported .onnx (default: die)"
    parser.add_argument("models", nargs="*", default=["die"], metavar="MODEL", help=what)
    add(parser, "--device", "--engine", "--threads", "--json")


def run(args: argparse.Namespace) -> None:
    import torch

    from aquamam import __version__
    from aquamam.export.runner import EXPORTED

    torch.set_num_threads(args.threads or torch.get_num_threads())
    about: dict[str, Any] = {"aquamam": __version__, "torch": torch.__version__, "python": platform.python_version()}
    about |= {"machine": f"{platform.system()} {platform.machine()}", "threads": torch.get_num_threads()}
    engines = ["onnx" if name.endswith(EXPORTED) else args.engine for name in args.models]
    rows = [{"model": m, "engine": e, **measure(m, args), **about} for m, e in zip(args.models, engines)]
    if args.json:
        print(json.dumps(rows))
        return
    names = ("model", "engine", "images_per_second", "ms_for_one", "memory_mb", "threads", "machine", "torch")
    print("\n".join(columns([[n.replace("_", " ") for n in names], *([str(row[n]) for n in names] for row in rows)])))


def measure(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Images a second in batches, milliseconds for one image, and the most memory in MB that the process has held."""
    import torch

    model = load_model(name, args.device, args.engine)
    size, channels = model.config.image_size, model.config.channels

    def seconds(count: int) -> float:
        images = torch.randint(256, (count, channels, size, size), dtype=torch.uint8)
        taken: list[float] = []
        with torch.inference_mode():
            _ = model(images).mode  # the first pass sets up much
            while sum(taken) < SECONDS or len(taken) < 5:
                start = time.perf_counter()
                _ = model(images).mode.cpu()
                taken.append(time.perf_counter() - start)
        return statistics.median(taken)

    facts = {"images_per_second": round(BATCH / seconds(BATCH), 1), "ms_for_one": round(1e3 * seconds(1), 2)}
    try:
        import resource
    except ImportError:  # Windows
        return {**facts, "memory_mb": None}
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # in bytes on macOS, else in kilobytes
    return {**facts, "memory_mb": round(most / (1e6 if sys.platform == "darwin" else 1e3))}
