"""Translates a configuration of AMD Quark into a recipe."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quantry.errors import ConflictError, RecipeError, nearest_spelling
from quantry.onnx.config import QuantizationConfig
from quantry.onnx.options import FIELDS, ROWS, RecipeDraft
from quantry.onnx.vocabulary import OptionWords
from quantry.recipe import FixNeuron, NpuLimits, Qdq, QOperator, Recipe, VitisDialect, VitisQdq
from quantry.recipe.compatibility import Conflict, Setting, conflict_error

_DEFAULTS = QuantizationConfig()

# Recipes allow this: integer operators can hold scales within the NPU's limits. A user of AMD's API who enables the NPU
# wants a file that AMD's compiler reads, which is one of the other formats.
_NPU_NEEDS_PAIRS = Conflict(
    field="emit.format",
    allowed=(Qdq, VitisQdq, FixNeuron),
    reason="integer operators have 32-bit biases and the NPU has 8-bit ones",
    conditions=(Setting("scale.npu", NpuLimits()),),
    given=QOperator(),
    fixes=(Setting("scale.npu", None),),
)

_SELECTION = {
    "exclude": "nodes_to_exclude",
    "include": "nodes_to_quantize",
    "operators": "op_types_to_quantize",
    "exclude_subgraphs": "subgraphs_to_exclude",
    "input_nodes": "input_nodes",
    "output_nodes": "output_nodes",
}


@dataclass(frozen=True)
class Job:
    """A translated configuration.

    Attributes:
        recipe: The recipe.
        draft: What it was made from; it also holds what recipes do not have: random data, files, logging.
        selection: The facade's names for the fields of `quantry.recipe.Selection`, for messages.
    """

    recipe: Recipe
    draft: RecipeDraft
    selection: Mapping[str, str] = field(default_factory=_SELECTION.copy)


def translate(config: QuantizationConfig, dialect: VitisDialect | None = None) -> Job:
    """Translate a configuration, which is not changed.

    Args:
        config: The configuration.
        dialect: The dialect of a Vitis or extended QDQ format; None takes what AMD Quark 0.13 writes for the types.

    Raises:
        RecipeError: An option is unknown, has the wrong type, is not supported or does not go with another.

    Example:
        >>> from quantry.onnx import CalibrationMethod
        >>> config = QuantizationConfig(calibrate_method=CalibrationMethod.Percentile)
        >>> translate(config).recipe.scale.activation
        Percentile(percentile=99.999, symmetric=True)
    """
    options = checked_options(config.extra_options)
    draft = RecipeDraft()
    for key, value in _fields(config, options).items():
        draft = FIELDS[key].applied(draft, value, key)
    if dialect is not None and draft.format is None:
        draft = replace(draft, format=VitisQdq(dialect))
    settings = {key: value for key, value in vars(config).items() if value != getattr(_DEFAULTS, key)}
    return finished(draft, options, {**settings, **options})


def finished(
    draft: RecipeDraft, options: Mapping[str, Any], settings: Mapping[str, Any], *, by_layer: bool = False
) -> Job:
    """Apply ``extra_options`` to a draft and return the job.

    Args:
        draft: The fields of a configuration.
        options: Keys of ``extra_options``; all are known.
        settings: Everything that the caller set, for messages.
        by_layer: Whether types come from specifications of layers, for messages.

    Raises:
        RecipeError: An option has the wrong type, is not supported or does not go with another.
    """
    # In the order of the table: some options depend on others that must be applied first.
    for key, row in ROWS.items():
        if key in options:
            draft = row.applied(draft, options[key], f"extra_options[{key!r}]")
    words = OptionWords(settings, draft.plan, by_layer)
    try:
        recipe = draft.recipe()
    except ConflictError as error:
        raise conflict_error(error.conflict, words) from error
    if recipe.scale.npu is not None and isinstance(recipe.emit.format, QOperator):
        raise conflict_error(_NPU_NEEDS_PAIRS, words)
    return Job(recipe, draft)


def checked_options(options: object) -> dict[str, Any]:
    """Return a copy of ``extra_options`` after checking that every key is known.

    Args:
        options: A mapping, or None for no options.

    Raises:
        RecipeError: It is not a mapping, or a key is unknown; the message suggests the nearest spelling.
    """
    if options is None:
        return {}
    if not isinstance(options, Mapping):
        raise RecipeError(f"extra_options must be a dict or None, got {type(options).__name__}")
    for key in options:
        if key not in ROWS:
            hint = nearest_spelling(str(key), ROWS)
            field = f"; {key} is a field of QuantizationConfig, not an extra option" if key in FIELDS else hint
            raise RecipeError(f"extra_options must hold known keys, got {key!r}{field}")
    return dict(options)


def _fields(config: QuantizationConfig, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of the fields in the order of the table, including options that are other names for fields."""
    values = {key: getattr(config, key) for key in FIELDS}
    for key, value in options.items():
        row = ROWS[key]
        if row.spelling_of:
            row.check(value, f"extra_options[{key!r}]")
            values[row.spelling_of] = value
    return values
