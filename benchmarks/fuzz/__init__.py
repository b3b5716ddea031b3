"""Mutated models: quantry must quantize valid ones and refuse invalid ones with a `ModelError`, and nothing else."""
