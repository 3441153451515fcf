"""A tiny training run as a process of its own: python train_tiny.py OUT STEPS [JSON]; also under torchrun, where
"killed_at" is the step after which the second worker kills itself, once."""

import json
import os
import signal
import sys
from dataclasses import replace

import torch
from networks import tiny_config
from synthetic import KnownMixture

from aquamam.network.model import ModelConfig
from aquamam.training.config import TrainConfig
from aquamam.training.distributed import process_group
from aquamam.training.trainer import Trainer

SHAPE = {"bins": 16, "layers": 2, "hidden": 32, "image_size": 8, "stem": (8, 8)}
MODEL = tiny_config(**SHAPE, dropout=0.1, stem_blocks=(0, 1), stem_norm="batch")


def tiny_trainer(out, steps: int = 60, model: ModelConfig = MODEL, start_from=None, **changes) -> Trainer:
    settings = {"batch_size": 32, "validate_every": 20, "validation_size": 64, "checkpoint_seconds": 0.05}
    settings |= {"threads": 0, "lr": 3e-3, "smoothing": 2.0, "precision": "float32"}  # whatever the processor
    config = TrainConfig(steps=steps, **{**settings, **changes})
    data = KnownMixture(), KnownMixture(split="valid", length=64)
    return Trainer("aquamam", model.to_dict(), config, *data, out, start_from=start_from, device="cpu", quiet=True)


def main() -> None:  # a function, so that nothing of the run is left when the interpreter ends
    out, steps, changes = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]) if len(sys.argv) > 3 else {}
    torch.set_num_threads(1)  # sums are rounded alike only with as many threads as in the run it is compared with
    last = changes.pop("killed_at", None)

    def killed(progress, _):
        if progress.step == last and (os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]) == ("1", "0"):
            os.kill(os.getpid(), signal.SIGKILL)

    with process_group("cpu"):
        model = replace(MODEL, **{key: changes.pop(key) for key in ("dropout", "pose") if key in changes})
        trainer = tiny_trainer(out, steps, model, **changes)
        trainer.resume()
        print(f"from step {trainer.progress.step}", file=sys.stderr, flush=True)
        print("ready", flush=True)
        trainer.fit(killed)
        print("done", flush=True)


if __name__ == "__main__":
    main()
