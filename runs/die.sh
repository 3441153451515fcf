#!/usr/bin/env bash
# The bundled die: seven stages on renders made while training, a quarter of them with other lights, grounds and framing. The heads are
# tempered between the first three. The last four train on every rotation that a picture fits, with batch norms that keep their
# statistics; in the fifth, half of the views are along the axes, where few faces show. The sixth goes on from the tempered mean of the
# fourth and the fifth at a higher rate for longer, the seventh from the tempered sixth, and the mean of these two is kept. Then the
# model is tempered and calibrated on splits of its own, judged on fresh renders, and put into the package. Each training goes on when
# it was stopped.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/die}
data=(--data render:die --vary robust --set validation_size=1000)
aquamam train die-small "${data[@]}" --out "$out/first" --time-budget 45m --set scaled_heads=false
python runs/temper.py die "$out/first/best.safetensors" "$out/tempered-1.safetensors"
aquamam train die-small --from "$out/tempered-1.safetensors" "${data[@]}" --out "$out/second" --time-budget 40m --seed 1 \
  --set smoothing=0.0 --set lr=0.001 --set validate_every=250
python runs/temper.py die "$out/second/best.safetensors" "$out/tempered-2.safetensors"
aquamam train die-small --from "$out/tempered-2.safetensors" "${data[@]}" --out "$out/third" --time-budget 16m --seed 2 \
  --set smoothing=0.0 --set lr=0.0005 --set averaging=0.995 --set validate_every=250
python runs/temper.py die "$out/third/best.safetensors" "$out/tempered-3.safetensors"
last=(--set smoothing=0.0 --set lr=0.0003 --set averaging=0.997 --set labels_per_image=4 --set frozen_norms=0.0 --set validate_every=200)
aquamam train die-small --from "$out/tempered-3.safetensors" "${data[@]}" --out "$out/fourth" --time-budget 20m --seed 3 "${last[@]}"
aquamam train die-small --from "$out/fourth/best.safetensors" "${data[@]}" --out "$out/fifth" --time-budget 18m --seed 4 "${last[@]}" \
  --set focus=0.5
python runs/mean.py "$out/mean.safetensors" "$out/fourth/best.safetensors" "$out/fifth/best.safetensors"
python runs/temper.py die "$out/mean.safetensors" "$out/tempered-5.safetensors"
aquamam train die-small --from "$out/tempered-5.safetensors" "${data[@]}" --out "$out/sixth" --time-budget 70m --seed 5 "${last[@]}" \
  --set lr=0.0008 --set averaging=0.998 --set focus=0.3
python runs/temper.py die "$out/sixth/best.safetensors" "$out/tempered-6.safetensors"
aquamam train die-small --from "$out/tempered-6.safetensors" "${data[@]}" --out "$out/seventh" --time-budget 80m --seed 6 "${last[@]}" \
  --set lr=0.0008 --set averaging=0.998 --set focus=0.3
mkdir -p "$out/last"
python runs/mean.py "$out/last/best.safetensors" "$out/tempered-6.safetensors" "$out/seventh/best.safetensors"
python runs/finish.py die "$out/last"
