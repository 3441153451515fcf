"""What test_compiled.py runs in a process of its own: the compiler does not follow the checks of shapes that tests switch on."""

from dataclasses import replace

import torch
from train_tiny import MODEL

from aquamam.network.compiled import compiled
from aquamam.posterior.distribution import learn
from aquamam.network.model import AQuaMaM
from aquamam.geometry.rotations import random_quat
from aquamam.rendering.solids import solid

CONFIG = replace(MODEL, certainty=True, contrast=(0.6, 1.0, 1.7), spill=0.3, sharpness=(1.2, 0.9, 1.1))


def sure_model() -> AQuaMaM:
    torch.manual_seed(0)
    model = AQuaMaM(CONFIG).eval()
    with torch.no_grad():
        for head in (model.head, model.first_head):
            head.weight.mul_(12)
    return model


def main() -> None:
    generator = torch.Generator().manual_seed(0)
    model = sure_model()
    learn(model, symmetries={"group": solid("cylinder").symmetry.to_dict()})
    quick = compiled(model)
    images = torch.rand(1, 3, 8, 8, generator=generator)
    q = random_quat((7, len(images)), generator=generator)
    with torch.no_grad():
        want = model(images)
        mode, log_prob, best = want.mode, want.log_prob(q), want.topk(3)
    for context in (torch.no_grad(), torch.inference_mode(), torch.enable_grad()):
        with context:
            got = quick(images)
            assert torch.allclose(got.mode, mode, atol=1e-6)
            assert torch.allclose(got.log_prob(q), log_prob, atol=1e-4)
            assert torch.allclose(got.topk(3).log_probs, best.log_probs, atol=1e-4)
    assert got.symmetry is not None
    assert len(quick(images[:0]).mode) == 0
    torch.nn.init.zeros_(model.head.weight)  # what becomes of the model does not reach the compiled one
    assert torch.allclose(quick(images).mode, mode, atol=1e-6)
    print("the same")


if __name__ == "__main__":
    main()
