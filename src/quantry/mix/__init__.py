"""Mixed precision: which tensors need more bits, and which can do with fewer."""

from quantry.mix.chain import MixInputs, run_mix
from quantry.mix.judge import Score, check_goal
from quantry.mix.mixer import Mixer
from quantry.mix.sensitivity import Sensitivity, sensitivity
from quantry.mix.stage import MixRequest, candidates, mix, target_options

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
