#!/usr/bin/env bash
# The small cylinder model: 6,500 steps of 128 images rendered on the fly (832,000 images).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/cylinder}
aquamam train cylinder-small --data render:cylinder --out "$out" --steps 6500 --set validation_size=1000
aquamam evaluate "$out/best.safetensors" --count 2000 --out "$out/evaluation"
