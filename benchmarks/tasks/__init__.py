"""What the measured processes do. Each module imports its tool inside its functions only."""
