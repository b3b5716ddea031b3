"""Options of calibration, evaluation and files."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from quantry.errors import OptionError
from quantry.onnx.enums import METHODS, method_of, own_member
from quantry.onnx.options.option_row import Apply, Kind, OptionRow, refuses, same_result, sets, sets_field
from quantry.onnx.options.recipe_draft import RandomInputs, RecipeDraft, refuse
from quantry.recipe import Distribution, Entropy, LayerWisePercentile, Method, MinMax, NonOverflow, Percentile

_BOUNDED = "the float pass keeps histograms instead of activations, so memory is bounded in any case"
_DEFAULT_AVERAGE = 0.01  # onnxruntime's averaging constant.


def _method_option(key: str, method: type[Method], owner: str, change: Callable[[Any, Any], Method]) -> Apply:
    """Return a function that changes a field of the calibration method, or notes that another method was chosen."""

    def apply(draft: RecipeDraft, value: Any) -> RecipeDraft:
        current = draft.scale.activation
        if not isinstance(current, method):
            return draft.with_note(f"{key} has no effect without {owner}")
        return replace(draft, scale=replace(draft.scale, activation=change(current, value)))

    return apply


def _moving_average(current: MinMax, value: bool) -> MinMax:
    return replace(current, moving_average=_DEFAULT_AVERAGE if value else None)


def _average_constant(draft: RecipeDraft, value: float) -> RecipeDraft:
    current = draft.scale.activation
    if not isinstance(current, MinMax) or current.moving_average is None:
        return draft.with_note("CalibMovingAverageConstant has no effect without CalibMovingAverage")
    return replace(draft, scale=replace(draft.scale, activation=MinMax(float(value))))


def _symmetric_range(draft: RecipeDraft, value: bool) -> RecipeDraft:
    current = draft.scale.activation
    if isinstance(current, Percentile):
        return replace(draft, scale=replace(draft.scale, activation=replace(current, symmetric=value)))
    expected = not isinstance(current, MinMax | Entropy)
    if value == expected or draft.plan.activation.symmetric:
        return draft
    raise refuse(
        "extra_options['CalibTensorRangeSymmetric']",
        value,
        f"only Percentile supports both values, got {type(current).__name__}; use ActivationSymmetric={value}",
    )


def _scenario(current: Distribution, value: str) -> Distribution:
    powers = {"same": 1.0, "p3": 1.0 / 3.0}
    if value not in powers:
        raise OptionError(f"extra_options['Scenario'] must be 'same' or 'p3', got {value!r}")
    return replace(current, power=powers[value])


def _bins(draft: RecipeDraft, value: int) -> RecipeDraft:
    current = draft.scale.activation
    if isinstance(current, Entropy):
        return replace(draft, scale=replace(draft.scale, activation=replace(current, bins=value)))
    if isinstance(current, MinMax | NonOverflow):
        return draft.with_note("NumBins has no effect on a method without a histogram")
    raise refuse(
        "extra_options['NumBins']",
        value,
        f"{type(current).__name__} reads a histogram of 65,536 bins that all methods share; leave it out",
    )


def _quantized_bins(draft: RecipeDraft, value: int) -> RecipeDraft:
    current = draft.scale.activation
    if not isinstance(current, Entropy):
        return draft.with_note("NumQuantizedBins has no effect without CalibrationMethod.Entropy")
    bins = max(current.bins, value)  # Entropy needs at least as many bins as levels.
    return replace(draft, scale=replace(draft.scale, activation=Entropy(bins, value)))


def _weight_method(draft: RecipeDraft, value: object) -> RecipeDraft:
    if value is None:
        return draft
    member = own_member(value, METHODS, "extra_options['WeightCalibrateMethod']")
    return replace(
        draft, scale=replace(draft.scale, weight=method_of(member, "extra_options['WeightCalibrateMethod']"))
    )


def _smallest_range(draft: RecipeDraft, value: float | None) -> RecipeDraft:
    return replace(draft, scale=replace(draft.scale, smallest_range=float(value or 0.0)))


def _random_shapes(draft: RecipeDraft, value: Any) -> RecipeDraft:
    if not Kind.DICT.holds(value) and not Kind.LIST.holds(value):
        raise OptionError(
            "extra_options['RandomDataReaderInputShape'] must be a dict of shapes by input, a list of shapes or one "
            f"shape, got {value!r}"
        )
    shapes = {name: tuple(shape) for name, shape in value.items()} if isinstance(value, Mapping) else tuple(value)
    return replace(draft, random=replace(draft.random, shapes=shapes))


def _random_ranges(draft: RecipeDraft, value: Mapping[str, Iterable[float]] | None) -> RecipeDraft:
    ranges: dict[str, tuple[float, float]] = {}
    for name, bounds in (value or {}).items():
        pair = tuple(float(bound) for bound in bounds)
        if len(pair) != 2 or not pair[0] <= pair[1]:
            raise OptionError(
                f"extra_options['RandomDataReaderInputDataRange'][{name!r}] must be (low, high) with low <= high, "
                f"got {bounds!r}"
            )
        ranges[name] = (pair[0], pair[1])
    return replace(draft, random=RandomInputs(draft.random.shapes, ranges))


_FLOAT_PERCENTILE = "CalibrationMethod.Percentile"
_LAYER_WISE = "LayerWiseMethod.LayerWisePercentile"

ROWS = (
    sets_field("CalibDataSize", Kind.INT, "all", "Maximum number of samples.", "observe.samples"),
    OptionRow(
        "Percentile",
        Kind.FLOAT,
        "99.999",
        "Percentage of values inside the range.",
        "scale.activation = Percentile(...)",
        _method_option("Percentile", Percentile, _FLOAT_PERCENTILE, lambda old, new: replace(old, percentile=new)),
    ),
    OptionRow(
        "CalibTensorRangeSymmetric",
        Kind.BOOL,
        "True for PowerOfTwoMethod, Percentile and LayerWisePercentile, else False",
        "One threshold for both signs. Percentile supports both values, other methods only their own.",
        "scale.activation = Percentile(symmetric=...)",
        _symmetric_range,
    ),
    OptionRow(
        "CalibMovingAverage",
        Kind.BOOL,
        "False",
        "MinMax: average the extremes over batches instead of taking the overall ones.",
        "scale.activation = MinMax(moving_average=...)",
        _method_option("CalibMovingAverage", MinMax, "CalibrationMethod.MinMax", _moving_average),
    ),
    OptionRow(
        "CalibMovingAverageConstant",
        Kind.FLOAT,
        "0.01",
        "How much less each older batch counts; 0 is the plain mean. It has no effect in AMD Quark 0.13.",
        "scale.activation = MinMax(moving_average=...)",
        _average_constant,
    ),
    OptionRow(
        "LWPMetric",
        Kind.TEXT,
        "'mae'",
        "The error that chooses between percentiles: 'mae' or 'mse'.",
        "scale.activation = LayerWisePercentile(metric=...)",
        _method_option("LWPMetric", LayerWisePercentile, _LAYER_WISE, lambda old, new: replace(old, metric=new)),
    ),
    OptionRow(
        "PercentileCandidates",
        Kind.LIST,
        "[99.99, 99.999, 99.99999]",
        "The percentiles to try.",
        "scale.activation = LayerWisePercentile(candidates=...)",
        _method_option(
            "PercentileCandidates",
            LayerWisePercentile,
            _LAYER_WISE,
            lambda old, new: replace(old, candidates=tuple(float(percent) for percent in new)),
        ),
    ),
    refuses(
        "LWPUseHistogram",
        Kind.BOOL,
        "Measure the error on a histogram.",
        "errors are measured on a histogram of 65,536 bins, which is as accurate as the values; leave it out",
        harmless=True,
    ),
    OptionRow(
        "NumQuantizedBins",
        Kind.INT,
        "128",
        "Entropy: levels of the quantized histogram.",
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
    OptionRow(
        "Scenario",
        Kind.TEXT,
        "'same'",
        "Distribution: 'same' measures the spread of the values, 'p3' that of their cube roots.",
        "scale.activation = Distribution(power=...)",
        _method_option("Scenario", Distribution, "CalibrationMethod.Distribution", _scenario),
    ),
    refuses(
        "MinMSEModePof2Scale",
        Kind.TEXT,
        "Which values a power-of-two MinMSE searches over.",
        "the search covers all values of all samples; leave it out",
        harmless="All",
    ),
    refuses(
        "MinMSEModeFloatScale",
        Kind.TEXT,
        "Which values MinMSE with float scales searches over.",
        "the search covers all values; leave it out",
        harmless="All",
    ),
    OptionRow(
        "WeightCalibrateMethod",
        Kind.MEMBER,
        "None",
        "A different method for weights.",
        "scale.weight",
        _weight_method,
    ),
    same_result("CalibOptimizeMem", Kind.BOOL, "True", "Keep activations on disk during calibration.", _BOUNDED),
    same_result("CalibOptimizeDisk", Kind.BOOL, "False", "Use less disk space for that.", _BOUNDED),
    same_result(
        "CalibWorkerNum",
        Kind.INT,
        "1",
        "Number of calibration threads.",
        "counting runs in parallel with inference, and the number of threads does not change the result",
    ),
    refuses(
        "CalibPassthroughOpTypes",
        Kind.LIST,
        "Operator types whose output takes the range of their input.",
        "operators that only move data already share the scale of their input; others have their own range",
        harmless=[],
    ),
    OptionRow(
        "UseRandomData",
        Kind.BOOL,
        "False",
        "Calibrate with one random sample if there is no data, without a warning.",
        "random data",
        sets("random_given"),
    ),
    OptionRow(
        "MinimumRealRange",
        Kind.FLOAT,
        "None",
        "Width to which narrower ranges are widened.",
        "scale.smallest_range",
        _smallest_range,
    ),
    sets_field(
        "ActivationRestrictedAsymmetric",
        Kind.BOOL,
        "False",
        "Unsigned activations have their zero point at 0 if no value is negative, and else in the middle.",
        "scale.zero_point_at_an_end",
    ),
    OptionRow(
        "RandomDataReaderInputShape",
        Kind.ANY,
        "{}",
        "Shapes of random inputs by name, in the order of the inputs, or of the only input.",
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
    refuses(
        "SaveTensorHistFig",
        Kind.BOOL,
        "Draw histograms of tensors.",
        "plot quantry.quantize(...).stages.statistics instead",
        harmless=False,
    ),
    refuses(
        "SaveAndRestore",
        Kind.TEXT,
        "A file that caches ranges for the next run.",
        "the results of all stages are already cached in $QUANTRY_CACHE or ~/.cache/quantry; leave it out",
        harmless=None,
    ),
    refuses(
        "TensorsRangeFile",
        Kind.TEXT,
        "A file that caches ranges for the next run.",
        "the results of all stages are already cached in $QUANTRY_CACHE or ~/.cache/quantry; leave it out",
        harmless=None,
    ),
)


def _data(draft: RecipeDraft, value: object) -> RecipeDraft:
    if not draft.evaluate and value is not None:
        return draft.with_note("EvalDataReader has no effect without EvalMetrics")
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
        "Data for EvalMetrics; None takes the calibration data.",
        "evaluation_data",
        _data,
    ),
    OptionRow(
        "TmpDir",
        Kind.TEXT,
        "None",
        "Directory of temporary files; it must exist.",
        "the directory of calibration samples that do not fit in memory",
        sets("temporary_folder"),
    ),
    refuses(
        "UserCustomOpLibPath",
        Kind.TEXT,
        "A library of custom operators to load into every session.",
        "sessions load no libraries; define custom operators as functions in the model",
        harmless=None,
    ),
    refuses(
        "EncryptionAlgorithm",
        Kind.TEXT,
        "Encrypt files.",
        "encryption is not supported; use model_output=None and encrypt the returned model yourself",
        harmless=None,
    ),
    refuses(
        "QuantizationPreference",
        Kind.TEXT,
        "Set several of these options at once: 'accuracy', 'speed' or 'resource_efficiency'.",
        "it would overwrite other options; for accuracy use PowerOfTwoMethod.MinMSE or "
        "LayerWiseMethod.LayerWisePercentile; memory is bounded and the float pass runs only once in any case",
        harmless=None,
    ),
)
