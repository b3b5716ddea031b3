"""Tuning runs on another machine: a folder goes there with models, samples and recipes, quantized models come back."""
