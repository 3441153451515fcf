"""Pictures in real light, and below each our plain render of the rotation that a model finds in it.

    python runs/photoreal_figure.py docs/photoreal.png [MODEL]

The first eight centred pictures and the first sixteen detector crops of the test set that ships with the package.
"""

import sys

import numpy as np
import torch
from PIL import Image

import aquamam
from aquamam.data.loaders.photoreal import PhotorealDataset
from aquamam.evaluation.metrics import rotation_error
from aquamam.rendering.render import contact_sheet

SIDE, COLUMNS = 112, 8
SHOWN = {"centred": 8, "detector": 16}  # the first of each


def main(out: str, name: str) -> None:
    model = aquamam.load(name)
    data = PhotorealDataset()
    chosen = [data.names.index(f"{kind}/{k}") for kind, count in SHOWN.items() for k in range(count)]
    batch = PhotorealDataset(size=model.config.image_size).batch(chosen)
    with torch.no_grad():
        found = model(batch.images).mode
    error = torch.rad2deg(rotation_error(found.double(), batch.rotations)).tolist()
    tiles, labels = [], []
    for i, q, angle in zip(chosen, found.double().numpy(), error):
        picture = Image.fromarray(data.image(i)).resize((SIDE, SIDE), Image.Resampling.BICUBIC)
        tiles.append(np.concatenate([np.asarray(picture), data.plain(i, q[None], SIDE)[0]]))
        labels.append(f"{data.rows[i]['light']}\n{angle:.{int(angle < 10)}f}° off")
    contact_sheet(np.stack(tiles), columns=COLUMNS, labels=labels).save(out)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else "die")
