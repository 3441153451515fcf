"""How good a model is: evaluate (model and held-out images to figures), results (the figures as values) and metrics
(pure functions)."""
