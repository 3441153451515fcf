"""An HTTP service around models: images in, posteriors out, as JSON and as a page.

A request comes to `app` (routes, log, metrics, page) within the limits of `gate`, passes `reading` (bytes to image and
`schemas`), and waits in `batcher` for the network's thread, which answers it as its schema says.
"""
