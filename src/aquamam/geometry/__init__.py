"""Rotations as numbers: no images, no networks.

rotations (quaternions xyzw, conversions, angles, measures), grid (the equivolumetric grid of SO(3)), symmetry
(SymmetryGroup), cells (charts, bins, legal bins, volumes), camera (intrinsics and crops) and
directional (Bingham and von Mises distributions).
"""
