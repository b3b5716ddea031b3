"""Arithmetic of quantization; knows no graph and no stage."""
