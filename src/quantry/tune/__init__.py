"""Stage 6: tunes weights, biases and scales after ranges have been chosen."""

from quantry.tune.retouch import retouch, tuned_params
from quantry.tune.stage import ALGORITHMS, Algorithm, tune
from quantry.tune.task import TuneTask
from quantry.tune.tuned import Tuned

__all__ = ["ALGORITHMS", "Algorithm", "TuneTask", "Tuned", "retouch", "tune", "tuned_params"]
