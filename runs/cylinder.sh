#!/usr/bin/env bash
# The bundled cylinder: four stages on renders made while training, a quarter of them (two fifths in the third) with other lights,
# grounds and framing; from the second on, batch norms keep their statistics and each image has sixteen, 32 and again sixteen true
# rotations. Then the model is tempered and calibrated on splits of their own, judged on fresh renders, and put into the package.
# Stopped, it goes on.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/cylinder}
data=(--data render:cylinder --vary robust --set validation_size=500)
aquamam train cylinder-small "${data[@]}" --out "$out/first" --steps 2700
python runs/temper.py cylinder "$out/first/best.safetensors" "$out/tempered-1.safetensors"
aquamam train cylinder-small --from "$out/tempered-1.safetensors" "${data[@]}" --out "$out/second" --time-budget 22m --seed 1 \
  --set smoothing=0.0 --set lr=0.0003 --set averaging=0.997 --set labels_per_image=16 --set frozen_norms=0.0 --set validate_every=200
python runs/temper.py cylinder "$out/second/best.safetensors" "$out/tempered-2.safetensors"
aquamam train cylinder-small --from "$out/tempered-2.safetensors" "${data[@]}" --out "$out/third" --time-budget 45m --seed 2 \
  --set share=0.4 --set smoothing=0.0 --set lr=0.0008 --set averaging=0.998 --set labels_per_image=32 --set frozen_norms=0.0 --set validate_every=400
python runs/temper.py cylinder "$out/third/best.safetensors" "$out/tempered-3.safetensors"
aquamam train cylinder-small --from "$out/tempered-3.safetensors" "${data[@]}" --out "$out/fourth" --time-budget 75m --seed 3 \
  --set smoothing=0.0 --set lr=0.0008 --set averaging=0.998 --set labels_per_image=16 --set frozen_norms=0.0 --set validate_every=200
python runs/finish.py cylinder "$out/fourth" --spill 0.3 --contrast
