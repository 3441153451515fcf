"""Pictures of posteriors: the rotation-vector ball, the Mollweide map, the conditionals; and learning curves.

Every function returns a matplotlib `Figure` that is bound to no window; `save` writes it as PNG, SVG or PDF.
"""

from aquamam.plotting.ball import ball
from aquamam.plotting.cloud import Cloud, make_cloud
from aquamam.plotting.curves import learning_curve, read_log
from aquamam.plotting.marginals import marginals
from aquamam.plotting.mollweide import mollweide
from aquamam.plotting.overlay import overlay
from aquamam.plotting.style import THEMES, density_colours, save
from aquamam.rendering.known import KnownObject, known_object

__all__ = ["THEMES", "Cloud", "KnownObject", "ball", "density_colours", "known_object", "learning_curve", "make_cloud"]
__all__ += ["marginals", "mollweide", "overlay", "read_log", "save"]
