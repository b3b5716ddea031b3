"""Samples for commands that take models and data, but no labels."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantry.cli.frame import current_output

if TYPE_CHECKING:
    from quantry.data.calibration_data import CalibrationData


def samples_for(model: Path, data: Path | None, images: dict[str, Any], limit: int | None = None) -> "CalibrationData":
    """Return samples that fit a model's inputs; random ones without data.

    Args:
        model: The model.
        data: Images or arrays, as for `quantry quantize`.
        images: Fields of `ImageOptions` that were given.
        limit: Maximum number of samples.
    """
    from quantry.data.images import ImageOptions
    from quantry.data.open_data import calibration_data
    from quantry.data.random_data import RandomData
    from quantry.graph.float_model import input_signatures
    from quantry.graph.load import model_source

    inputs = input_signatures(model_source(model).load())
    if data is None:
        current_output().warn("no data were given; one random sample is used, uniform in [0, 1)")
        return calibration_data(RandomData(), inputs)
    opened = calibration_data(data, inputs, ImageOptions(**images) if images else None)
    return opened if limit is None else opened.take(limit)
