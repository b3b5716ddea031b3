from collections.abc import Callable

import numpy as np
import pytest

from quantry.errors import RecipeError
from quantry.recipe import (
    BitOperationsBudget,
    CrossLayer,
    DataType,
    DerivedBias,
    EmitOptions,
    Entropy,
    EvaluateOptions,
    FloatBias,
    LatencyBudget,
    LayerWisePercentile,
    MinMax,
    ObserveOptions,
    OwnBias,
    Percentile,
    PerChannel,
    PlanOptions,
    PowerOfTwoScale,
    PrepareOptions,
    Recipe,
    ScaleOptions,
    SizeBudget,
    SizeShare,
    TensorSpec,
    VitisDialect,
    VitisQdq,
)


@pytest.mark.parametrize(
    "make",
    [
        lambda: MinMax(1.0),
        lambda: MinMax(-0.1),
        lambda: Percentile(0),
        lambda: Percentile(100.1),
        lambda: Entropy(bins=64, quantized_bins=128),
        lambda: LayerWisePercentile(candidates=()),
        lambda: LayerWisePercentile(metric="rms"),
        lambda: CrossLayer(steps=0),
        lambda: CrossLayer(steps=-2),
        lambda: CrossLayer(weight_threshold=-1.0),
        lambda: CrossLayer(convergence=float("nan")),
        lambda: ObserveOptions(samples=0),
        lambda: EvaluateOptions(latency_runs=-1),
        lambda: ScaleOptions(weight=MinMax(0.5)),
        lambda: PlanOptions(activation=TensorSpec(granularity=PerChannel())),
        lambda: Recipe(plan=PlanOptions(activation=TensorSpec(DataType.INT32))),
        lambda: Recipe(plan=PlanOptions(TensorSpec(DataType.INT32)), emit=EmitOptions(VitisQdq(VitisDialect.QUARK))),
        lambda: PlanOptions(fused_activations=("Rellu",)),
        lambda: TensorSpec(DataType.BFLOAT16, scale=PowerOfTwoScale()),
        lambda: Recipe(plan=PlanOptions(activation=TensorSpec(DataType.FLOAT16))),
        lambda: Recipe(plan=PlanOptions(weight=TensorSpec(DataType.INT32))),
        lambda: Recipe(
            plan=PlanOptions(weight=TensorSpec(DataType.UINT32, granularity=PerChannel()), bias=FloatBias()),
            emit=EmitOptions(VitisQdq(VitisDialect.QUARK)),
        ),
        lambda: Recipe(plan=PlanOptions(bias=OwnBias(TensorSpec(DataType.UINT8)))),
        lambda: Recipe(plan=PlanOptions(bias=OwnBias(TensorSpec(granularity=PerChannel())))),
        lambda: PrepareOptions(opset=0),
        lambda: SizeBudget(0),
        lambda: SizeShare(1.1),
        lambda: BitOperationsBudget(1.5),
        lambda: BitOperationsBudget(float("nan")),
        lambda: LatencyBudget(0.0),
        lambda: LatencyBudget(1.0, runs=0),
        lambda: Recipe(
            plan=PlanOptions(TensorSpec(DataType.INT16), TensorSpec(DataType.INT16), DerivedBias()),
        ),
    ],
)
def test_invalid_options_raise(make: Callable[[], object]) -> None:
    with pytest.raises(RecipeError):
        make()


@pytest.mark.parametrize("dtype", [member for member in DataType if member.bits in (8, 16, 32) and member.is_integer])
def test_integer_limits_equal_numpy(dtype: DataType) -> None:
    limits = np.iinfo(dtype.value)
    assert (dtype.lowest, dtype.highest, dtype.bits) == (limits.min, limits.max, limits.bits)


def test_limits_of_four_bit_and_float_types() -> None:
    assert (DataType.INT4.lowest, DataType.INT4.highest) == (-8, 7)
    assert (DataType.UINT4.lowest, DataType.UINT4.highest) == (0, 15)
    assert not DataType.BFLOAT16.is_integer
    assert DataType.FLOAT16.bits == 16
