#!/usr/bin/env bash
# The bundled symsol: one network for the five plain solids of SYMSOL and the three marked ones, the shape not told.
# Stopped, it goes on.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-runs/symsol}
solids=tet,cube,icosa,cone,cyl,tetX,cylO,sphereX
aquamam train symsol-small --data "render:$solids" --out "$out" --time-budget 112m \
  --set labels_per_image=12 --set validation_size=800
python runs/bundle.py symsol "$out" --solids "$solids" --images 10000
