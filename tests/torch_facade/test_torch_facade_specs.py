"""Short forms of specifications are the full ones with a type and a number of scales."""

import pytest

from quantry.errors import RecipeError
from quantry.torch import (
    Bfloat16Spec,
    Dtype,
    Int8PerChannelSpec,
    Int8PerTensorSpec,
    PerChannelMinMaxObserver,
    PerTensorHistogramObserver,
    PlaceholderObserver,
    QSchemeType,
    RoundType,
    ScaleType,
    Uint4PerGroupSpec,
)


def test_short_form_gives_the_full_one() -> None:
    spec = Int8PerTensorSpec(
        observer_method="histogram", symmetric=True, scale_type="float", round_method="half_even", is_dynamic=False
    ).to_quantization_spec()
    assert (spec.dtype, spec.qscheme, spec.symmetric) == (Dtype.int8, QSchemeType.per_tensor, True)
    assert spec.observer_cls is PerTensorHistogramObserver
    assert (spec.scale_type, spec.round_method) == (ScaleType.float, RoundType.half_even)
    channels = Int8PerChannelSpec(
        symmetric=True, ch_axis=0, scale_type="float", round_method="half_even", is_dynamic=False
    ).to_quantization_spec()
    assert (channels.observer_cls, channels.ch_axis) == (PerChannelMinMaxObserver, 0)
    plain = Bfloat16Spec().to_quantization_spec()
    assert (plain.dtype, plain.observer_cls) == (Dtype.bfloat16, PlaceholderObserver)


def test_defaults_are_those_of_amd_quark() -> None:
    assert Int8PerTensorSpec().to_quantization_spec().symmetric is True
    assert Int8PerChannelSpec(ch_axis=0).to_quantization_spec().symmetric is False
    assert Int8PerChannelSpec(ch_axis=0, symmetric=True).to_quantization_spec().symmetric is True


def test_mistakes_and_what_cannot_be_exported_are_refused() -> None:
    with pytest.raises(RecipeError, match=r"observer_method must be one of min_max.*did you mean 'histogram'"):
        Int8PerTensorSpec(observer_method="histgram").to_quantization_spec()
    with pytest.raises(RecipeError, match=r"round_method must be one of .*got 'even'"):
        Int8PerTensorSpec(round_method="even").to_quantization_spec()
    with pytest.raises(RecipeError, match="group"):
        Uint4PerGroupSpec(group_size=128, symmetric=False).to_quantization_spec()
    with pytest.raises(RecipeError, match="observer_method must be omitted"):
        Int8PerChannelSpec(observer_method="min_max").to_quantization_spec()
