"""What a mesh alone says about its rotations.

symmetries (find_symmetries: the rotations that leave it unchanged) by way of surface, matching, visual and group_fit; view_map (how
ambiguous each view direction is); lookalikes (rotations indistinguishable in one image because paint is out of sight).
"""
