"""Models outside torch: `onnx` writes an AQuaMaM as ONNX graphs; `runner` loads a model to be run by torch or by
onnxruntime, and puts the posterior on top of such graphs."""
