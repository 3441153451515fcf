"""The mean of the weights of neighbouring models: python runs/mean.py OUT.safetensors CHECKPOINT CHECKPOINT ...

Stages of one training lie in one valley; the middle between two of them is often better than either (docs/log.md). The last one's
description goes with it.
"""

import sys

import torch

import aquamam

if __name__ == "__main__":
    out, *sources = sys.argv[1:]
    models = [aquamam.load(source) for source in sources]
    states = [model.state_dict() for model in models]
    mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    models[-1].load_state_dict(mean)
    aquamam.save_model(models[-1], out, models[-1].info)
