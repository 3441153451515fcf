"""An HTTP service around models: images in, posteriors out, as JSON and as a page.

app (routes), gate and limits (what every request passes), reading and schemas (requests to values), batcher and answering (the
network's thread) and page.
"""
