"""Models on disk: `checkpoint` saves and loads any kind of model, and imports the original's weights; weights/ has the bundled ones."""
