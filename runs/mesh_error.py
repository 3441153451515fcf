"""What calibration on bent parts is worth: python runs/mesh_error.py PART BOP_FOLDER OBJECT [0.0 0.05 0.08 ...]

For each share by which renders may differ from the mesh: figures of such renders and of the photographs, before the
model's temperatures and floor are found on such renders and after.
"""

import argparse

import aquamam
from aquamam.data.base import RotationDataset
from aquamam.data.loaders.bop import BopDataset
from aquamam.data.photos import PhotoDataset
from aquamam.evaluation.evaluate import evaluate
from aquamam.network.poses import part_of
from aquamam.rendering.known import known_object
from aquamam.training.calibrate import temper


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part")
    parser.add_argument("data")
    parser.add_argument("object", type=int)
    parser.add_argument("errors", type=float, nargs="*", default=[0.0, 0.05, 0.08])
    args = parser.parse_args()
    model = aquamam.load(args.part)
    known, found = known_object(model), model.calibration
    assert known is not None
    size, options = model.config.image_size, {"objects": [args.object], "min_visible": 0.6, "part": part_of(model)}
    photographs = BopDataset(args.data, "test", size=size, **options)

    def show(name: str, data: RotationDataset) -> None:
        f = evaluate(model, data, samples=200, strategies=["greedy"], quiet=True).figures
        shares = f"within 15 / 30 degrees {f.acc15:.2f} / {f.acc30:.2f}, 90 % regions hold {f.coverage90:.2f}"
        print(f"  {name}: LL {f.mean_log_likelihood:.2f}, {shares}", flush=True)

    for error in args.errors:
        print(f"mesh error {error:g}")
        model.calibration = found
        renders = PhotoDataset(known.mesh, size, split="judge", length=400, mesh_error=error)
        show("renders before", renders)
        show("photographs before", photographs)
        temper(model, PhotoDataset(known.mesh, size, split="temper", length=600, mesh_error=error))
        show("renders after", renders)
        show("photographs after", photographs)


if __name__ == "__main__":
    main()
