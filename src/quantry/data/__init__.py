"""Calibration data: sources, images, spooling, and checks that samples fit the model."""
