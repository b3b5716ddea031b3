"""What the NPU's recipe refuses before any work, and what it says."""

from dataclasses import replace

import pytest

from quantry.errors import RecipeError
from quantry.recipe import (
    PRESETS,
    DataType,
    DerivedBias,
    FloatBias,
    FloatScale,
    NpuConversions,
    NpuLimits,
    OwnBias,
    PerChannel,
    PowerOfTwoScale,
    Recipe,
    TensorSpec,
    from_plain,
    from_yaml,
    to_plain,
    to_yaml,
)

XINT8 = PRESETS["XINT8"].recipe
INT8 = TensorSpec(DataType.INT8, scale=PowerOfTwoScale())


def with_plan(**changed: object) -> Recipe:
    return replace(XINT8, plan=replace(XINT8.plan, **changed))  # type: ignore[arg-type]


def test_xint8_converts_and_limits_as_amd_does() -> None:
    assert XINT8.prepare.npu == NpuConversions()
    assert XINT8.scale.npu == NpuLimits()
    assert NpuConversions().sigmoid_to_hard_sigmoid
    assert not NpuConversions().clip
    assert NpuLimits().max_rounds == 5


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"activation": replace(INT8, scale=FloatScale())}, "plan.activation.scale must be PowerOfTwoScale()"),
        ({"weight": replace(INT8, scale=FloatScale())}, "plan.weight.scale must be PowerOfTwoScale()"),
        ({"weight": replace(INT8, granularity=PerChannel())}, "plan.weight.granularity must be PerTensor()"),
        ({"activation": replace(INT8, symmetric=False)}, "plan.activation.symmetric must be True"),
        ({"weight": replace(INT8, symmetric=False)}, "plan.weight.symmetric must be True"),
        ({"weight": replace(INT8, dtype=DataType.UINT8)}, "plan.weight.dtype must be int8"),
        ({"weight": replace(INT8, dtype=DataType.INT16)}, "plan.weight.dtype must be int8"),
        ({"activation": replace(INT8, dtype=DataType.INT16)}, "plan.activation.dtype must be int8 or uint8"),
        ({"bias": DerivedBias()}, "plan.bias must be OwnBias"),
        ({"bias": FloatBias()}, "plan.bias must be OwnBias"),
        ({"bias": OwnBias(TensorSpec(DataType.INT32))}, "plan.bias.spec.dtype must be int8"),
    ],
)
def test_what_the_npu_cannot_take_raises_with_the_nearest_setting(changed: dict[str, object], reason: str) -> None:
    with pytest.raises(RecipeError) as caught:
        with_plan(**changed)
    message = str(caught.value)
    assert message.startswith(reason)
    assert "got " in message
    field, value = reason.split(" must be ")
    assert f"; set {field} = {value.split(' or ')[0]}" in message
    assert "or scale.npu = None" in message


def test_reduced_range_raises() -> None:
    with pytest.raises(RecipeError, match=r"scale\.reduce_range must be False with scale\.npu"):
        replace(XINT8, scale=replace(XINT8.scale, reduce_range=True))


def test_the_same_types_are_fine_without_limits() -> None:
    plan = replace(XINT8.plan, weight=replace(INT8, granularity=PerChannel()))
    assert replace(XINT8, plan=plan, scale=replace(XINT8.scale, npu=None)).plan.weight.granularity == PerChannel()


def test_signed_activations_are_fine() -> None:
    assert with_plan(activation=INT8).plan.activation == INT8


def test_switches_round_trip_and_can_be_named_alone() -> None:
    recipe = replace(XINT8, prepare=replace(XINT8.prepare, npu=NpuConversions(sigmoid_to_hard_sigmoid=False)))
    assert from_yaml(to_yaml(recipe)) == recipe
    plain = {**to_plain(XINT8), "prepare": {"npu": {"sigmoid_to_hard_sigmoid": False}}}
    assert from_plain(plain).prepare.npu == recipe.prepare.npu


def test_at_least_one_round_is_needed() -> None:
    with pytest.raises(RecipeError, match="max_rounds must be at least 1, got 0"):
        NpuLimits(max_rounds=0)
