"""The paper's network: images (pictures to tensors), layers (embeddings, Transformer block) and model (AQuaMaM,
ModelConfig).

`model` also holds `RotationModel`, the base of all models of the package.
"""
