"""Runs a graph, float or quantized by a plan, with onnxruntime or as torch operators."""
