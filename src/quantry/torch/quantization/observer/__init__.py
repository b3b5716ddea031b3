"""Observers where scripts for Quark for PyTorch look for them."""
