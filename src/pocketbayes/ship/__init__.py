"""Networks on their way to users: compression, ONNX, the hub, scikit-learn."""
