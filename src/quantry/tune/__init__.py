"""Stage 6: tunes weights, biases and scales after ranges have been chosen."""

from quantry.tune.stage import ALGORITHMS, Algorithm, on_this_machine, tune
from quantry.tune.task import Tuned, TuneTask, tuned_model, tuned_params

__all__ = ["ALGORITHMS", "Algorithm", "TuneTask", "Tuned", "on_this_machine", "tune", "tuned_model", "tuned_params"]
