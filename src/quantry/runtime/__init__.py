"""What runs models and what results depend on: onnxruntime, threads, devices."""
