"""`aquamam fit`, from a mesh to a calibrated model.

part (opens and checks the mesh), stages (resumable work) and pipeline (all of it).
"""
