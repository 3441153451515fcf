#!/usr/bin/env bash
# The small die model: 6,500 steps of 128 images rendered on the fly (832,000 images).
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/die}
aquamam train die-small --data render:die --out "$out" --steps 6500 --set validation_size=1000
aquamam evaluate "$out/best.safetensors" --count 2000 --out "$out/evaluation"
