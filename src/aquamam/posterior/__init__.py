"""Distributions over rotations: every model of the package returns one, and none of them knows the network behind it.

distribution (the interface, and `Calibrated`), sentences (AQuaMaM's), equal_views (equal shares for
rotations indistinguishable in the image), calibration (temperatures, floor, conformal scores), regions (sets with
guaranteed coverage), maps (`within`: log densities on whole grids), modes and answers (clusters, and the record of a
prediction), windows and poses (where the part is, too), fusion, kernel_mixture and tracking (several frames).
"""
