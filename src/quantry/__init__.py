"""Turns a float neural network into the quantized one you can ship."""

__version__ = "0.1.0"
