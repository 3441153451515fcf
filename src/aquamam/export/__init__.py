"""Models as ONNX graphs: onnx writes them, runner (OnnxModel) runs them in onnxruntime behind the usual posterior."""
