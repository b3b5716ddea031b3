"""What happens if tuning fails numerically: the layer, or the whole step, keeps what it had, and a note says so.

Few samples, inputs that hardly vary, zeros, denormals and values near the limit of float32 make matrices singular and
trainings diverge. That is a property of the data, and the rest of the model can still be tuned.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from quantry.errors import DataError, QuantryError
from quantry.notes import Note, NoteKind
from quantry.tune.layers import LayerConstants
from quantry.tune.task import Tuned, TuneTask

_LOG = logging.getLogger("quantry.tune")

_NUMERICAL = (ArithmeticError, ValueError, RuntimeError, MemoryError)


def finite(values: Mapping[str, Any]) -> bool:
    """Whether all arrays have finite values only."""
    return all(bool(np.isfinite(array).all()) for array in values.values())


def layer_or_nothing(title: str, layer: str, algorithm: Callable[[], LayerConstants]) -> LayerConstants:
    """Return the new constants of a layer, or none if the algorithm fails.

    Args:
        title: Name of the algorithm.
        layer: Name of the layer.
        algorithm: Computes the constants.
    """
    try:
        constants = algorithm()
    except DataError as error:
        return LayerConstants(failure=str(error))
    except QuantryError:
        raise
    except _NUMERICAL as error:
        _LOG.info("%s: layer %s keeps its constants", title, layer, exc_info=error)
        return LayerConstants(failure=f"{type(error).__name__}: {error}")
    if not finite(constants.values):
        return LayerConstants(failure="its new constants are not finite")
    return constants


def step_or_nothing(title: str, task: TuneTask, algorithm: Callable[[], Tuned]) -> Tuned:
    """Return the result of a whole step, or the model as it was if the step fails.

    Args:
        title: Name of the algorithm.
        task: What is tuned.
        algorithm: Runs the step.
    """
    try:
        tuned = algorithm()
    except QuantryError:
        raise
    except _NUMERICAL as error:
        _LOG.warning("%s failed and is skipped", title, exc_info=error)
        return _skipped(title, task, f"{type(error).__name__}: {error}")
    if finite(tuned.weights):
        return tuned
    return _skipped(title, task, "the new constants are not finite")


def _skipped(title: str, task: TuneTask, reason: str) -> Tuned:
    message = "{title} failed and changed nothing: {reason}"
    return Tuned({}, task.params, (Note.of(message, NoteKind.IMPORTANT, title=title, reason=reason),))
