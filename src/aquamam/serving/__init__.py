"""An HTTP service around models: images in, posteriors out, as JSON and as a page.

A request passes `gate` (limits, time, log) and `reading` (bytes to image and `schemas`), and waits in `batcher` for the
network's thread, which answers it as its schema says. `app` has the routes and the page.
"""
