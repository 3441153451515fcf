"""`aquamam fit`, from a mesh to a calibrated model: `part` opens and checks the mesh, `stages` is work that is not done
twice, `judgement` says how good the model is, `pipeline` does all of it."""
