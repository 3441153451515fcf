"""Distributions over rotations: every model of the package returns one, and none of them knows the network behind it.

distribution (the interface, `Calibrated`, and `EqualViews` for rotations indistinguishable in the image), sentences
(AQuaMaM's, and its decoding), calibration (temperatures, floor, conformal scores, classes of equal views), regions
(sets with guaranteed coverage), maps (`within`: log densities on whole grids), modes and answers (clusters, and the
record of a prediction), windows and poses (where the part is, too), fusion, kernel_mixture and tracking (several
frames).
"""
