"""Options of calibration.

Options of evaluation, files and the rest.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from quantry.errors import RecipeError
from quantry.onnx.enums import METHODS, method_of, own_member
from quantry.onnx.options.draft import Draft, RandomInputs, refuse
from quantry.onnx.options.option_row import Apply, Kind, OptionRow, sets
from quantry.recipe import Entropy, LayerWisePercentile, Method, MinMax, NonOverflow, Percentile

_BOUNDED = "the float pass keeps counts and no activations, in bounded memory, whatever this says"
_DEFAULT_AVERAGE = 0.01


def _method_option(key: str, method: type[Method], owner: str, change: Callable[[Any, Any], Method]) -> Apply:
    """Return what changes a field of the activation's method, or notes that another method was chosen."""

    def apply(draft: Draft, value: Any) -> Draft:
        current = draft.scale.activation
        if not isinstance(current, method):
            return draft.noted(f"{key} has no effect without {owner}")
        return replace(draft, scale=replace(draft.scale, activation=change(current, value)))

    return apply


def _moving_average(current: MinMax, value: bool) -> MinMax:
    return replace(current, moving_average=_DEFAULT_AVERAGE if value else None)


def _average_constant(draft: Draft, value: float) -> Draft:
    current = draft.scale.activation
    if not isinstance(current, MinMax) or current.moving_average is None:
        return draft.noted("CalibMovingAverageConstant has no effect without CalibMovingAverage")
    return replace(draft, scale=replace(draft.scale, activation=MinMax(float(value))))


def _symmetric_range(draft: Draft, value: bool) -> Draft:
    current = draft.scale.activation
    if isinstance(current, Percentile):
        return replace(draft, scale=replace(draft.scale, activation=replace(current, symmetric=value)))
    expected = not isinstance(current, MinMax | Entropy)
    if value == expected or draft.plan.activation.symmetric:
        return draft
    raise refuse(
        "extra_options['CalibTensorRangeSymmetric']",
        value,
        f"only Percentile has both forms, got {type(current).__name__}; use ActivationSymmetric={value}",
    )


def _bins(draft: Draft, value: int) -> Draft:
    current = draft.scale.activation
    if isinstance(current, Entropy):
        return replace(draft, scale=replace(draft.scale, activation=replace(current, bins=value)))
    if isinstance(current, MinMax | NonOverflow):
        return draft.noted("NumBins has no effect on a method without histogram")
    raise refuse(
        "extra_options['NumBins']",
        value,
        f"{type(current).__name__} reads a histogram of 65,536 bins that serves every method; leave it out",
    )


def _quantized_bins(draft: Draft, value: int) -> Draft:
    current = draft.scale.activation
    if not isinstance(current, Entropy):
        return draft.noted("NumQuantizedBins has no effect without CalibrationMethod.Entropy")
    bins = max(current.bins, value)
    return replace(draft, scale=replace(draft.scale, activation=Entropy(bins, value)))


def _weight_method(draft: Draft, value: object) -> Draft:
    if value is None:
        return draft
    member = own_member(value, METHODS, "extra_options['WeightCalibrateMethod']")
    return replace(
        draft, scale=replace(draft.scale, weight=method_of(member, "extra_options['WeightCalibrateMethod']"))
    )


def _random_shapes(draft: Draft, value: Mapping[str, Iterable[int]]) -> Draft:
    shapes = {name: tuple(int(length) for length in shape) for name, shape in value.items()}
    return replace(draft, random=replace(draft.random, shapes=shapes))


def _random_ranges(draft: Draft, value: Mapping[str, Iterable[float]] | None) -> Draft:
    ranges: dict[str, tuple[float, float]] = {}
    for name, bounds in (value or {}).items():
        pair = tuple(float(bound) for bound in bounds)
        if len(pair) != 2 or not pair[0] < pair[1]:
            raise RecipeError(
                f"extra_options['RandomDataReaderInputDataRange'][{name!r}] must be (low, high) with low < high, "
                f"got {bounds!r}"
            )
        ranges[name] = (pair[0], pair[1])
    return replace(draft, random=RandomInputs(draft.random.shapes, ranges))


def _only(key: str, kind: Kind, meaning: str, instead: str, *, harmless: object) -> OptionRow:
    return OptionRow(key, kind, repr(harmless), meaning, refused=instead, harmless=(harmless,))


_FLOAT_PERCENTILE = "CalibrationMethod.Percentile"
_LAYER_WISE = "LayerWiseMethod.LayerWisePercentile"

ROWS = (
    OptionRow(
        "CalibDataSize", Kind.INT, "all", "Use at most so many samples.", "observe.samples", sets("observe.samples")
    ),
    OptionRow(
        "Percentile",
        Kind.FLOAT,
        "99.999",
        "How many percent of the values stay inside the range.",
        "scale.activation = Percentile(...)",
        _method_option("Percentile", Percentile, _FLOAT_PERCENTILE, lambda old, new: replace(old, percentile=new)),
    ),
    OptionRow(
        "CalibTensorRangeSymmetric",
        Kind.BOOL,
        "True for PowerOfTwoMethod, Percentile and LayerWisePercentile, else False",
        "One threshold for both signs. Percentile has both forms; other methods accept the one that is theirs.",
        "scale.activation = Percentile(symmetric=...)",
        _symmetric_range,
    ),
    OptionRow(
        "CalibMovingAverage",
        Kind.BOOL,
        "False",
        "MinMax: average the extremes of the samples instead of taking the farthest.",
        "scale.activation = MinMax(moving_average=...)",
        _method_option("CalibMovingAverage", MinMax, "CalibrationMethod.MinMax", _moving_average),
    ),
    OptionRow(
        "CalibMovingAverageConstant",
        Kind.FLOAT,
        "0.01",
        "How much less each older sample counts; 0 is the plain mean. In AMD Quark 0.13 it has no effect.",
        "scale.activation = MinMax(moving_average=...)",
        _average_constant,
    ),
    OptionRow(
        "LWPMetric",
        Kind.TEXT,
        "'mae'",
        "The error that decides between percentiles: 'mae' or 'mse'.",
        "scale.activation = LayerWisePercentile(metric=...)",
        _method_option("LWPMetric", LayerWisePercentile, _LAYER_WISE, lambda old, new: replace(old, metric=new)),
    ),
    OptionRow(
        "PercentileCandidates",
        Kind.LIST,
        "[99.99, 99.999, 99.99999]",
        "The percentiles that are tried.",
        "scale.activation = LayerWisePercentile(candidates=...)",
        _method_option(
            "PercentileCandidates",
            LayerWisePercentile,
            _LAYER_WISE,
            lambda old, new: replace(old, candidates=tuple(float(percent) for percent in new)),
        ),
    ),
    _only(
        "LWPUseHistogram",
        Kind.BOOL,
        "Measure the error on a histogram.",
        "errors are measured on a histogram of 65,536 bins, which is as good as the values; leave it out",
        harmless=True,
    ),
    OptionRow(
        "NumQuantizedBins",
        Kind.INT,
        "128",
        "Entropy: levels that candidate ranges are reduced to.",
        "scale.activation = Entropy(quantized_bins=...)",
        _quantized_bins,
    ),
    OptionRow(
        "NumBins",
        Kind.INT,
        "Entropy 128; others do not need it",
        "Entropy: bins in which the divergence is measured.",
        "scale.activation = Entropy(bins=...)",
        _bins,
    ),
    _only(
        "Scenario",
        Kind.TEXT,
        "Variant of the Distribution method.",
        "the Distribution method is for float8 only and is not there; use CalibrationMethod.Percentile",
        harmless="same",
    ),
    _only(
        "MinMSEModePof2Scale",
        Kind.TEXT,
        "What a power-of-two MinMSE searches over.",
        "the search covers all values of all samples; leave it out",
        harmless="All",
    ),
    _only(
        "MinMSEModeFloatScale",
        Kind.TEXT,
        "What a MinMSE with float scales searches over.",
        "the search covers all values; leave it out",
        harmless="All",
    ),
    OptionRow(
        "WeightCalibrateMethod",
        Kind.MEMBER,
        "None",
        "Another method for weights.",
        "scale.weight",
        _weight_method,
    ),
    OptionRow("CalibOptimizeMem", Kind.BOOL, "True", "Keep activations on disk while calibrating.", satisfied=_BOUNDED),
    OptionRow("CalibOptimizeDisk", Kind.BOOL, "False", "Use less of the disk for that.", satisfied=_BOUNDED),
    OptionRow(
        "CalibWorkerNum",
        Kind.INT,
        "1",
        "Threads that count.",
        satisfied="counting goes on beside inference on the machine's cores and gives the same numbers with any number",
    ),
    _only(
        "CalibPassthroughOpTypes",
        Kind.LIST,
        "Operator types whose output takes the range of their input.",
        "operators that only move data share the scale of their input already; others have a range of their own",
        harmless=[],
    ),
    OptionRow(
        "UseRandomData",
        Kind.BOOL,
        "False",
        "Calibrate with one random sample where no data are given, without a warning.",
        "random data",
        sets("random_given"),
    ),
    OptionRow(
        "RandomDataReaderInputShape",
        Kind.DICT,
        "{}",
        "Shapes of random inputs by name.",
        "random data",
        _random_shapes,
    ),
    OptionRow(
        "RandomDataReaderInputDataRange",
        Kind.DICT,
        "None",
        "Lowest and highest value of random inputs by name.",
        "random data",
        _random_ranges,
    ),
    _only(
        "SaveTensorHistFig",
        Kind.BOOL,
        "Draw histograms of tensors.",
        "take the statistics of quantry.quantize(...).stages.statistics and draw them",
        harmless=False,
    ),
    _only(
        "SaveAndRestore",
        Kind.TEXT,
        "A file that keeps ranges for the next run.",
        "every stage's result is kept already, under its content, in $QUANTRY_CACHE or ~/.cache/quantry; leave it out",
        harmless=None,
    ),
    _only(
        "TensorsRangeFile",
        Kind.TEXT,
        "A file that keeps ranges for the next run.",
        "every stage's result is kept already, under its content, in $QUANTRY_CACHE or ~/.cache/quantry; leave it out",
        harmless=None,
    ),
)


def _data(draft: Draft, value: object) -> Draft:
    if not draft.evaluate and value is not None:
        return draft.noted("EvalDataReader has no effect without EvalMetrics")
    return replace(draft, evaluation_data=value)


EVALUATION_ROWS = (
    OptionRow(
        "EvalMetrics",
        Kind.BOOL,
        "False",
        "Compare the result with the float model and log cosine and L2.",
        "evaluation",
        sets("evaluate"),
    ),
    OptionRow(
        "EvalDataReader",
        Kind.ANY,
        "None",
        "Data for EvalMetrics; else the calibration data.",
        "evaluation_data",
        _data,
    ),
    OptionRow(
        "TmpDir",
        Kind.TEXT,
        "None",
        "The folder of temporary files.",
        refused="temporary files lie where Python's tempfile puts them; set the environment variable TMPDIR",
        harmless=(None,),
    ),
    OptionRow(
        "UserCustomOpLibPath",
        Kind.TEXT,
        "None",
        "A library of operators to load into every session.",
        refused="sessions load no libraries; give operators of your own as functions inside the model",
        harmless=(None,),
    ),
    OptionRow(
        "EncryptionAlgorithm",
        Kind.TEXT,
        "None",
        "Encrypt files.",
        refused="nothing is encrypted; take the model from memory (model_output=None) and encrypt it yourself",
        harmless=(None,),
    ),
    OptionRow(
        "QuantizationPreference",
        Kind.TEXT,
        "None",
        "Choose several of these options at once: 'accuracy', 'speed' or 'resource_efficiency'.",
        refused="it would overwrite what was chosen; for accuracy use PowerOfTwoMethod.MinMSE or "
        "LayerWiseMethod.LayerWisePercentile, memory is bounded and the float pass is made once in any case",
        harmless=(None,),
    ),
)
