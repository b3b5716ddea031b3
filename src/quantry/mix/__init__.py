"""Mixed precision: which tensors need more bits, and which can do with fewer."""
