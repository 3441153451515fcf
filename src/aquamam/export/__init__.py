"""Models outside torch: `onnx` writes an AQuaMaM as ONNX graphs, `runner` puts the posterior back on top of them,
`engine` loads a model to be run by torch or by onnxruntime."""
