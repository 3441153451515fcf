"""Images of triangle meshes under rotations, from pip packages alone.

meshes (Mesh, load_mesh), solids (solid, open_object), render (render, RenderSettings, contact_sheet), scene (a mesh as
the loops read it), raster (the compiled loop) and known (known_object). photo draws photograph-like images, with lights, backdrop and sensor;
simplify reduces large meshes. numba and trimesh are imported when first needed, and of the modules that rendering
processes use none needs torch, so that they start in a moment.
"""
