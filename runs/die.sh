#!/usr/bin/env bash
# The bundled die: trained on renders made while training, a quarter of them with other lights, grounds and framing; then
# tempered and calibrated on splits of their own, judged on fresh renders, and put into the package. Stopped, it goes on.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/die}
aquamam train die-small --data render:die --vary robust --out "$out" --time-budget "${2:-88m}" --set validation_size=1000
python runs/finish.py die "$out"
