"""What a mesh looks like under rotations: its symmetries, and rotations that single views cannot tell apart.

symmetries (find_symmetries, near_symmetries, models_info), lookalikes (Lookalikes: rotations of one picture), view_map
(view_ambiguity: how many look the same from each side); below them surface (what can be seen), matching (does a
rotation keep the surface and its renders) and group_fit (the finite group nearest to what was found).
"""
