#!/usr/bin/env bash
# The bundled symsol: one network for the five plain solids of SYMSOL and the three marked ones, the shape not told. It starts from the
# fourth stage of the cylinder (runs/cylinder.sh), then is tempered and calibrated on splits of their own, judged on fresh renders, and
# put into the package. Stopped, it goes on.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/symsol}
start=${2:-runs/cylinder/fourth/best.safetensors}
solids=tet,cube,icosa,cone,cyl,tetX,cylO,sphereX
aquamam train symsol-small --from "$start" --set by_volume=true --data "render:$solids" --set validation_size=800 --out "$out/first" \
  --time-budget 80m --set smoothing=8.0 --set smoothing_share=0.2 --set lr=0.0012 --set averaging=0.998 --set labels_per_image=12 \
  --set frozen_norms=0.6 --set validate_every=200
python runs/finish.py symsol "$out/first" --solids "$solids"
