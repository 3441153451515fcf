"""Data drawn from known mixtures on SO(3): does the model end at the true density? python runs/known.py [OUT] [STEPS]

The data is that of the tests (tests/synthetic.py) with modes fifteen times as concentrated, on finer bins and with tens
of thousands of held-out images.
"""

import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from synthetic import KnownMixture

from aquamam.checkpoints.checkpoint import load
from aquamam.evaluation.evaluate import evaluate
from aquamam.network.model import ModelConfig
from aquamam.training.config import TrainConfig
from aquamam.training.trainer import Trainer

KAPPA = 60.0
TEST = 20_000


def main(out: str, steps: int) -> None:
    model = ModelConfig(
        bins=100, dim=64, heads=4, layers=2, hidden=192, embedding="stem", image_size=8, stem=(16, 32),
        stem_blocks=(0, 0), stem_norm="batch",
    )  # fmt: skip
    config = TrainConfig(
        steps=steps, batch_size=512, validate_every=500, validation_size=2000, smoothing=0.0, lr=2e-3, threads=1
    )
    train, valid = KnownMixture(KAPPA), KnownMixture(KAPPA, split="valid", length=2000)
    progress = Trainer("aquamam", model.to_dict(), config, train, valid, out).fit()
    test = KnownMixture(KAPPA, split="test", length=TEST)
    q = test.batch(range(TEST)).rotations[:, 0]
    truth = torch.where(torch.arange(TEST) % 2 == 0, test.log_density(q, 0), test.log_density(q, 1))
    found = evaluate(load(Path(out) / "last.safetensors"), test, quiet=True)
    gap = truth - found.columns["log_likelihood"]
    figures = found.to_dict()
    print(
        json.dumps(
            {
                "rotations_seen": progress.images,
                "minutes": round(progress.elapsed / 60, 1),
                "test_rotations": TEST,
                "true_mean_log_likelihood": float(truth.mean()),
                "mean_log_likelihood": figures["mean_log_likelihood"],
                "gap": float(gap.mean()),
                "standard_error_of_gap": float(gap.std()) / TEST**0.5,
                **{key: figures[key] for key in ("pit_ks", "coverage50", "coverage90", "coverage95")},
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/known", int(sys.argv[2]) if len(sys.argv) > 2 else 4000)
