"""The one place where numbers become integers: grids, scales, rounding, histograms and errors."""
