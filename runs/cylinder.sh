#!/usr/bin/env bash
# A cylinder such as the bundled one: four stages on renders made while training, a quarter of them (two fifths in the third) with other
# lights, grounds and framing; from the second on, batch norms keep their statistics and each image has sixteen, 32 and again sixteen
# true rotations. Then the model is tempered and calibrated on splits of its own, judged on fresh renders, and put into the package.
# Stopped, it goes on.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/cylinder}
stage() { # OUT FROM SEED OPTIONS...
  aquamam train cylinder-small --data render:cylinder --vary robust --set validation_size=500 --out "$out/$1" \
    ${2:+--from "$out/$2/best.safetensors"} --seed "$3" "${@:4}"
}
last=(--set smoothing=0.0 --set frozen_norms=0.0)
stage first "" 0 --steps 2700
stage second first 1 --time-budget 22m "${last[@]}" --set lr=0.0003 --set averaging=0.997 --set labels_per_image=16 --set validate_every=200
stage third second 2 --time-budget 45m "${last[@]}" --set lr=0.0008 --set averaging=0.998 --set labels_per_image=32 --set validate_every=400 \
  --set share=0.4
stage fourth third 3 --time-budget 75m "${last[@]}" --set lr=0.0008 --set averaging=0.998 --set labels_per_image=16 --set validate_every=200
python runs/finish.py cylinder "$out/fourth"
