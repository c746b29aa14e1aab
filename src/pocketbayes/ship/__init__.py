"""Deployment of networks: compression, ONNX, the Hugging Face Hub, scikit-learn."""
