"""The native API: one float model in, one quantized model out."""

import functools
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import onnx_ir as ir

from quantry.data.calibration_data import CalibrationData
from quantry.data.images import ImageOptions
from quantry.data.open_data import calibration_data, pixel_doubts, pixel_notes
from quantry.data.random_data import RandomData
from quantry.errors import RecipeError
from quantry.evaluate import Evaluation, find_metric
from quantry.graph.load import model_source
from quantry.graph.quant_plan import DeclinedNode, QuantPlan
from quantry.graph.quantized_model import QuantizedModel
from quantry.keywords import known_keywords
from quantry.memo import DirectoryStore, Memo, Store, Trace
from quantry.mix import Score, check_goal
from quantry.numerics.tensor_params import QuantParams
from quantry.pipeline import DataLike, Stages, calibration_samples, run_evaluate, run_prepare, run_quantize
from quantry.recipe import Recipe, resolve_recipe

DEFAULT_STORE = "default"
"""Names the store in the user's cache directory."""

_NO_DATA = (
    "no calibration data were given: ranges come from one random sample, uniform in [0, 1), so the model is of no use "
    "and its metrics say nothing; give --data, or data="
)
_RANDOM_EVALUATION = (
    "no data were given, and none are needed to quantize with this recipe; the comparison with the float model is on "
    "one random sample, uniform in [0, 1), and says little"
)


@dataclass(frozen=True)
class QuantizationResult:
    """A quantized model and everything known about it.

    Attributes:
        recipe: What was asked for.
        stages: Handles on the results of all stages.
        trace: What ran and what was reused, grows when `evaluation` is asked for.
        notes: What the user should know.
    """

    recipe: Recipe
    stages: Stages
    trace: Trace
    notes: tuple[str, ...]
    _memo: Memo = field(repr=False)
    _evaluation_data: DataLike = field(repr=False)
    _float_file: Path | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        return f"QuantizationResult({self.recipe.name!r}, {len(self.notes)} notes, {self.trace!r})"

    @property
    def quantized(self) -> QuantizedModel:
        """The quantized model as a value."""
        return self.stages.quantized.value

    @property
    def model(self) -> ir.Model:
        """The quantized graph; clone it before editing."""
        return self.quantized.model

    @property
    def plan(self) -> QuantPlan:
        """Which tensors are quantized, to what."""
        return self.stages.plan.value

    @property
    def params(self) -> QuantParams:
        """Scales and zero points."""
        return self.stages.params.value

    @property
    def declined(self) -> tuple[DeclinedNode, ...]:
        """Nodes that stayed float, each with its reason."""
        return self.plan.declined

    @cached_property
    def evaluation(self) -> Evaluation:
        """Comparison with the float model; runs both on the first use.

        The data are those given as ``evaluation_data``, else the calibration data.
        """
        return run_evaluate(self.stages, self._evaluation_data, self.recipe, self._memo).value

    @property
    def evaluation_data(self) -> CalibrationData:
        """The data of `evaluation`."""
        data = self._evaluation_data
        return data if isinstance(data, CalibrationData) else data()

    def to_bytes(self) -> bytes:
        """Return the quantized ONNX file's bytes."""
        return self.quantized.to_bytes()

    def save(self, path: str | Path) -> tuple[Path, ...]:
        """Write the quantized model, atomically.

        Args:
            path: Where to; weights of models over 1.5 GB go to a file beside it.

        Returns:
            The files written.

        Raises:
            RecipeError: The path is that of the float model.
        """
        target, source = Path(path), self._float_file
        if source is not None and source.exists() and target.exists() and target.samefile(source):
            raise RecipeError(f"save must not overwrite the float model, got its path {target}; give another")
        return self.quantized.save(path)


_OTHER_NAMES = {
    "preset": "recipe",
    "config": "recipe",
    "quant_config": "recipe",
    "model_input": "model",
    "calibration_data": "data",
    "calibration_data_reader": "data",
    "reader": "data",
    "cache": "store",
}


@known_keywords("quantize", _OTHER_NAMES)
def quantize(  # noqa: PLR0913  one keyword for each thing a user brings
    model: Any,
    data: Any = None,
    recipe: Recipe | str | Path | Mapping[str, Any] = "S8S8_AAWS",
    *,
    evaluation_data: Any = None,
    images: ImageOptions | None = None,
    score: Score | None = None,
    store: Store | str | os.PathLike[str] | None = DEFAULT_STORE,
) -> QuantizationResult:
    """Quantize a float ONNX model.

    Args:
        model: Path, bytes, ``onnx.ModelProto`` or ``onnx_ir.Model``.
        data: Calibration data: an onnxruntime data reader, an iterable or a sequence of dicts or arrays, a folder of
            images, ``.npy`` or ``.npz`` files, a torch DataLoader. None will do where no scale has to be found in data;
            elsewhere it means random data, with a warning.
        recipe: A `Recipe`, the name of a preset, the path of a recipe file, or plain data.
        evaluation_data: Data for ``result.evaluation``, in any of the same forms; None uses the calibration data.
        images: How image files become inputs; without it a folder of images enters as RGB 0..255, and the first note
            says so.
        score: A function from the model's outputs for all calibration samples, one array for each output with the
            samples along its first axis, to a number that is larger where they are better; for mixed precision with the
            goal `WithinDrop`.
        store: Where results are kept: "default" for the user's cache directory, a directory, a store, or None to keep
            nothing.

    Returns:
        The result; nothing is written to disk but the store until it is saved.

    Raises:
        UserError: The model, the data or the recipe cannot be used; the message says why.

    Example:
        >>> result = quantry.quantize("model.onnx", data=reader, recipe="XINT8")  # doctest: +SKIP
        >>> result.save("model.int8.onnx")  # doctest: +SKIP
    """
    wanted, notes = resolve_recipe(recipe)
    _check_judges(wanted, score)
    trace = Trace()
    memo = Memo(_open_store(store), trace)
    prepared = run_prepare(model_source(model), wanted, memo)
    inputs = prepared.value.inputs
    calibration = functools.cache(lambda: calibration_samples(calibration_data(data, inputs, images), wanted))
    # Data that do not fit are told now, needed or not.
    of_data = () if data is None else _notes_on_pixels(calibration())
    evaluation: DataLike = calibration if evaluation_data is None else calibration_data(evaluation_data, inputs, images)
    stages = run_quantize(prepared, calibration, wanted, memo, score)
    if data is None and calibration.cache_info().currsize:
        of_data = (_NO_DATA,)
    elif data is None and evaluation_data is None:
        of_data = (_RANDOM_EVALUATION,)
        evaluation = functools.partial(calibration_data, RandomData(), inputs)
    source = Path(model) if isinstance(model, str | os.PathLike) else None
    return QuantizationResult(wanted, stages, trace, (*of_data, *notes, *stages.notes), memo, evaluation, source)


def _notes_on_pixels(data: CalibrationData) -> tuple[str, ...]:
    for doubt in pixel_doubts(data):
        warnings.warn(doubt, UserWarning, stacklevel=4)
    return pixel_notes(data)


def _check_judges(recipe: Recipe, score: Score | None) -> None:
    """Tell now, and not after all the work, of what results cannot be judged by."""
    for metric in recipe.evaluate.metrics:
        find_metric(metric)
    check_goal(None if recipe.mix.mixed is None else recipe.mix.mixed.goal, score)


def default_store_path() -> Path:
    """Return the directory of the default store: ``$QUANTRY_CACHE``, else a folder in the user's cache directory."""
    configured = os.environ.get("QUANTRY_CACHE")
    if configured:
        return Path(configured)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "quantry"


def _open_store(store: Store | str | os.PathLike[str] | None) -> Store | None:
    if store == DEFAULT_STORE:
        return _directory_store(default_store_path().absolute())
    if isinstance(store, str | os.PathLike):
        if not os.fspath(store):
            raise RecipeError("store must be a directory, a store, 'default' or None, got an empty path")
        return _directory_store(Path(store).absolute())
    if store is not None and not hasattr(store, "lookup"):
        raise RecipeError(
            f"store must be {DEFAULT_STORE!r}, a directory, a store or None, got {type(store).__name__}; in quantize"
        )
    return store


@functools.cache
def _directory_store(path: Path) -> DirectoryStore:
    # One object for one directory, so that calls share what is still in memory.
    return DirectoryStore(path)
