"""An HTTP service around models: images in, posteriors out, as JSON and as a page.

A request passes `gate` (size, time, log) and `reading` (bytes to image and `schemas`), and waits in `batcher` for the
network's thread, which does what `answering` says. `app` has the routes, `page` the page, `limits` what may be asked.
"""
