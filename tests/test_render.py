"""Promises of the renderer."""

import numpy as np
from scipy.spatial.transform import Rotation

from aquamam.render import RenderSettings, render
from aquamam.solids import solid


def test_an_image_does_not_depend_on_its_batch():
    mesh, q = solid("die").mesh, Rotation.random(6, random_state=0).as_quat()
    settings = RenderSettings(size=48)
    whole = render(mesh, q, settings)
    assert np.array_equal(whole, np.stack([render(mesh, one, settings) for one in q]))
