#!/usr/bin/env bash
# A die such as the bundled one: six stages on renders made while training, a quarter of them with other lights, grounds and framing.
# The last three train on every rotation that a picture fits, with batch norms that keep their statistics, and with more views along
# the axes, where few faces show. Then the model is tempered and calibrated on splits of its own, judged on fresh renders, and put into
# the package. Each training goes on when it was stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/die}
stage() { # OUT FROM TIME SEED OPTIONS...
  aquamam train die-small --data render:die --vary robust --set validation_size=1000 --out "$out/$1" ${2:+--from "$out/$2/best.safetensors"} \
    --time-budget "$3" --seed "$4" "${@:5}"
}
stage first "" 45m 0
stage second first 40m 1 --set smoothing=0.0 --set lr=0.001 --set validate_every=250
stage third second 16m 2 --set smoothing=0.0 --set lr=0.0005 --set averaging=0.995 --set validate_every=250
last=(--set smoothing=0.0 --set labels_per_image=4 --set frozen_norms=0.0 --set validate_every=200)
stage fourth third 20m 3 "${last[@]}" --set lr=0.0003 --set averaging=0.997
stage fifth fourth 70m 4 "${last[@]}" --set lr=0.0008 --set averaging=0.998 --set focus=0.3
stage sixth fifth 80m 5 "${last[@]}" --set lr=0.0008 --set averaging=0.998 --set focus=0.3
python runs/finish.py die "$out/sixth"
