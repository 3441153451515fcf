"""Loaders for data sets of others: folder (any images with a CSV), original, symsol, modelnet, pascal3d and bop.

Each reads its layout's own lists (`base.ListedDataset`); `aquamam.data.open_dataset` recognises them.
"""
