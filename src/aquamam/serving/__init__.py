"""An HTTP service around models: images in, posteriors out, as JSON and as a page."""
