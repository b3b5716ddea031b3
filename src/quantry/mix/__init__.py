"""Mixed precision: which tensors need more bits, and which can do with fewer."""

from quantry.mix.mixer import Mixer, Score, check_goal
from quantry.mix.sensitivity import Sensitivity, sensitivity
from quantry.mix.stage import MixInputs, MixRequest, candidates, mix, run_mix, target_options

__all__ = [
    "MixInputs",
    "MixRequest",
    "Mixer",
    "Score",
    "Sensitivity",
    "candidates",
    "check_goal",
    "mix",
    "run_mix",
    "sensitivity",
    "target_options",
]
