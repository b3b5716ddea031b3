"""Placement, scales, ranges and outputs against onnxruntime's own static quantization, operator by operator."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
import pytest
from equivalence_models import cnn, samples, transformer
from onnxruntime.quantization import CalibrationMethod, QuantType
from onnxruntime_oracle import Placed, oracle_model, oracle_ranges, placement, run_exactly
from operator_cases import CASES, case_model, case_samples

from quantry import quantize
from quantry.data.open_data import calibration_data
from quantry.graph.load import model_source
from quantry.graph.save import serialize
from quantry.numerics.grid import Grid, Range
from quantry.observe import observe
from quantry.prepare import prepare
from quantry.recipe import (
    DataType,
    Entropy,
    Method,
    MinMax,
    ObserveOptions,
    Percentile,
    PerChannel,
    PlanOptions,
    PrepareOptions,
    Recipe,
    TensorSpec,
)
from quantry.scale import BinnedValues, find_range


@dataclass(frozen=True)
class Scheme:
    """The same options for quantry and for onnxruntime."""

    ours: Recipe
    theirs: dict[str, Any]


def _asymmetric(weight: TensorSpec) -> Recipe:
    activation = TensorSpec(DataType.UINT8, symmetric=False)
    return Recipe(plan=PlanOptions(activation=activation, weight=weight, fused_activations=("Relu", "Clip")))


_U8S8 = {"activation_type": QuantType.QUInt8, "weight_type": QuantType.QInt8}
SCHEMES = {
    "U8S8": Scheme(_asymmetric(TensorSpec()), _U8S8),
    "U8S8 per channel": Scheme(_asymmetric(TensorSpec(granularity=PerChannel())), {**_U8S8, "per_channel": True}),
    "S8S8 symmetric": Scheme(
        Recipe(plan=PlanOptions(activation=TensorSpec(), weight=TensorSpec(), fused_activations=())),
        {
            "activation_type": QuantType.QInt8,
            "weight_type": QuantType.QInt8,
            "extra_options": {"ActivationSymmetric": True},
        },
    ),
}


@dataclass(frozen=True)
class Difference:
    """An intended difference.

    Attributes:
        reason: Why we do it otherwise.
        ours: Tensors that only we quantize.
        theirs: Tensors that only onnxruntime quantizes.
        scales: Tensors that both quantize, with other parameters.
    """

    reason: str
    ours: tuple[str, ...] = ()
    theirs: tuple[str, ...] = ()
    scales: tuple[str, ...] = ()


_LONE = "onnxruntime leaves it float where nothing before it is quantized; an integer NPU has no float unit for it"
_NO_RULE = "onnxruntime has no rule for it, so a chain of integers is broken there"
_OWN_RANGE = "it computes means, whose range is narrower; onnxruntime lends it its input's scale and wastes levels"
_NORM = "onnxruntime rounds the small parameter vectors to 8 bits, which saves nothing; ours stay float"

DIFFERENCES: dict[str, Difference] = {
    "Relu": Difference(_LONE, ours=("x", "y")),
    "Clip": Difference(_LONE, ours=("x", "y")),
    "Sub": Difference(_NO_RULE, ours=("y",)),
    "Div": Difference(_NO_RULE, ours=("y",)),
    "PRelu": Difference(_NO_RULE, ours=("c", "x", "y")),
    "HardSigmoid": Difference(_NO_RULE, ours=("x", "y")),
    "HardSwish": Difference(_NO_RULE, ours=("x", "y")),
    "Tanh": Difference(_NO_RULE, ours=("x", "y")),
    "ReduceMean": Difference(_NO_RULE, ours=("y",)),
    "DepthToSpace": Difference(_NO_RULE, ours=("y",)),
    "SpaceToDepth": Difference(_NO_RULE, ours=("y",)),
    "Expand": Difference(_NO_RULE, ours=("y",)),
    "Min": Difference(_NO_RULE, ours=("y",)),
    "Max": Difference(_NO_RULE, ours=("y",)),
    "AveragePool": Difference(_OWN_RANGE, scales=("y",)),
    "linear Resize": Difference(_OWN_RANGE, scales=("y",)),
    "last Concat": Difference("parts of the output keep their own scales; a joint one would be coarser", theirs=("y",)),
    "Gather from a table": Difference("a table lookup does no arithmetic; our table stays float", theirs=("w", "y")),
    "Pad with a value": Difference("the fill value is a scalar and is not quantized", theirs=("v",)),
    "LayerNormalization": Difference(_NORM, theirs=("b", "g")),
    "InstanceNormalization": Difference(_NORM, theirs=("b", "g")),
}
ONLY_SYMMETRIC = {
    "Conv Clip": Difference("onnxruntime gives the input of a Clip the range of its output", scales=("t",)),
}


def difference(case: str, scheme: str) -> Difference:
    listed = {**DIFFERENCES, **(ONLY_SYMMETRIC if scheme == "S8S8 symmetric" else {})}
    return listed.get(case, Difference(""))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("case", CASES)
def test_operator_is_quantized_as_by_onnxruntime_except_for_the_listed_differences(case: str, scheme: str) -> None:
    model = case_model(CASES[case])
    data = case_samples(model)
    ours = onnx.load_from_string(quantize(model, data, SCHEMES[scheme].ours, store=None).to_bytes())
    theirs = oracle_model(model, data, **SCHEMES[scheme].theirs)
    meant = difference(case, scheme)
    check_placement(placement(ours), placement(theirs), meant)
    check_parameters(placement(ours), placement(theirs), meant)
    if meant == Difference(""):
        check_outputs(ours, theirs, data)


def check_placement(ours: dict[str, Placed], theirs: dict[str, Placed], meant: Difference) -> None:
    assert ours.keys() - theirs.keys() == set(meant.ours)
    assert theirs.keys() - ours.keys() == set(meant.theirs)


def check_parameters(ours: dict[str, Placed], theirs: dict[str, Placed], meant: Difference) -> None:
    differing = set()
    for name in ours.keys() & theirs.keys():
        assert ours[name].dtype == theirs[name].dtype
        same_scale = np.allclose(ours[name].scale, theirs[name].scale, rtol=1e-6, atol=0)
        same_zero_point = np.array_equal(ours[name].zero_point, theirs[name].zero_point)
        differing |= set() if same_scale and same_zero_point else {name}
    assert differing == set(meant.scales)


def check_outputs(ours: onnx.ModelProto, theirs: onnx.ModelProto, data: list[dict[str, np.ndarray]]) -> None:
    got = run_exactly(ours.SerializeToString(), data)
    expected = run_exactly(theirs.SerializeToString(), data)
    placed = placement(ours)
    # A scale that differs in its last bit may round a value on a border to the next integer.
    step = float(placed["y"].scale.max()) if "y" in placed else 0.0
    np.testing.assert_allclose(got, expected, rtol=1e-6, atol=1.001 * step)
    assert np.mean(np.abs(got - expected) > 1e-6 * np.abs(expected)) < 0.02


def test_every_listed_difference_belongs_to_a_case() -> None:
    assert DIFFERENCES.keys() | ONLY_SYMMETRIC.keys() <= CASES.keys()


@pytest.mark.parametrize("operator", ["Relu", "LeakyRelu", "Clip"])
def test_default_plan_keeps_the_accumulator_between_convolution_and_activation(operator: str) -> None:
    """onnxruntime drops the Relu if the zero point clips; we keep it, which is correct for every zero point."""
    model = case_model(CASES[f"Conv {operator}"])
    result = quantize(model, case_samples(model), Recipe(), store=None)
    assert "t" not in result.plan.activations
    assert operator in {node.op_type for node in result.model.graph}


CALIBRATIONS: dict[str, tuple[Method, CalibrationMethod, dict[str, Any]]] = {
    "min-max": (MinMax(), CalibrationMethod.MinMax, {}),
    "mean of batches": (MinMax(moving_average=0.0), CalibrationMethod.MinMax, {"moving_average": True}),
    "percentile 99.9": (Percentile(99.9), CalibrationMethod.Percentile, {"percentile": 99.9}),
    "percentile 99": (Percentile(99.0), CalibrationMethod.Percentile, {"percentile": 99.0}),
    "two-sided percentile": (
        Percentile(99.0, symmetric=False),
        CalibrationMethod.Percentile,
        {"percentile": 99.0, "symmetric": False},
    ),
    "entropy": (Entropy(), CalibrationMethod.Entropy, {}),
    "entropy of 256 bins": (Entropy(256), CalibrationMethod.Entropy, {"num_bins": 256}),
}
_CODE_WIDTH = 2.0**-7
"""Relative width of a bin of our histogram."""
_ORACLE_BINS = 2048


def both_ranges(
    model: onnx.ModelProto, calibration: str, batches: int = 8, batch: int = 2
) -> dict[str, tuple[Range, tuple[float, float], float]]:
    """Return for each tensor our range, onnxruntime's, and the largest magnitude."""
    ours, method, options = CALIBRATIONS[calibration]
    prepared = prepare(model_source(model), PrepareOptions())
    data = samples(model, batches, batch)
    statistics = observe(prepared, calibration_data(data, prepared.inputs), ObserveOptions())
    grid = Grid.of(TensorSpec(DataType.UINT8, symmetric=False))
    theirs = oracle_ranges(serialize(prepared.model), data, method, **options)
    return {
        name: (find_range(BinnedValues(stats), ours, grid), theirs[name], max(-stats.minimum, stats.maximum))
        for name, stats in statistics.tensors.items()
        if name in theirs
    }


@pytest.mark.parametrize("calibration", ["min-max", "mean of batches"])
@pytest.mark.parametrize("model", [cnn, transformer])
def test_extrema_equal_those_of_onnxruntime(model: Any, calibration: str) -> None:
    ranges = both_ranges(model(), calibration)
    assert len(ranges) > 15
    for ours, theirs, largest in ranges.values():
        np.testing.assert_allclose((ours.low[0], ours.high[0]), theirs, rtol=1e-6, atol=1e-6 * largest)


@pytest.mark.parametrize("calibration", [name for name in CALIBRATIONS if "percentile" in name])
@pytest.mark.parametrize("model", [cnn, transformer])
def test_percentiles_equal_those_of_onnxruntime_within_the_width_of_both_bins(model: Any, calibration: str) -> None:
    for ours, theirs, largest in both_ranges(model(), calibration).values():
        width = 2 * largest / _ORACLE_BINS + _CODE_WIDTH * np.abs(theirs)
        assert np.all(np.abs(np.array([ours.low[0], ours.high[0]]) - theirs) <= width)


@pytest.mark.parametrize("model", [cnn, transformer])
def test_entropy_returns_the_only_candidate_where_bins_and_levels_are_equal(model: Any) -> None:
    for ours, theirs, largest in both_ranges(model(), "entropy").values():
        np.testing.assert_allclose((ours.low[0], ours.high[0]), theirs, rtol=1e-6, atol=1e-6 * largest)


@pytest.mark.parametrize("model", [cnn, transformer])
def test_entropy_range_is_close_to_that_of_onnxruntime(model: Any) -> None:
    """The divergence is flat and rough near its minimum, where moving one value to another bin changes the choice."""
    # In one batch, because onnxruntime adds bins if a later batch has a larger range.
    found = both_ranges(model(), "entropy of 256 bins", batches=1, batch=64)
    distances = [
        max(abs(ours.low[0] - theirs[0]), abs(ours.high[0] - theirs[1])) / largest
        for ours, theirs, largest in found.values()
    ]
    assert np.median(distances) <= 2 / 256
    assert np.max(distances) <= 0.1
