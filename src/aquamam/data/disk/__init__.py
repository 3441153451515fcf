"""Our data sets on disk.

layout (names, sizes, dataset.json), writing (rendering with many processes) and store (reading).
"""
