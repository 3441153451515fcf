#!/usr/bin/env bash
# The bundled cylinder: trained on renders made while training, a quarter of them with other lights, grounds and framing; then
# tempered and calibrated on splits of their own, judged on fresh renders, and put into the package. Stopped, it goes on.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/cylinder}
aquamam train cylinder-small --data render:cylinder --vary robust --out "$out" --steps 2700 --set validation_size=500
python runs/finish.py cylinder "$out"
