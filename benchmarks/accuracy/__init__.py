"""Quality on labelled data: float, quantry's presets and the peers', with bootstrap confidence intervals."""
