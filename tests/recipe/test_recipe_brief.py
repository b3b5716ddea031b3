import pytest

from quantry.recipe import CrossLayer, DataType, MinMax, Percentile, PerTensor, TensorSpec, brief


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (CrossLayer(), "CrossLayer"),
        (CrossLayer(steps=3, include_bias=False), "CrossLayer(steps=3, include_bias=False)"),
        (Percentile(99.9), "Percentile(percentile=99.9)"),
        ((MinMax(), PerTensor()), "MinMax + PerTensor"),
        ((), "none"),
        (TensorSpec(DataType.INT16), "TensorSpec(dtype=int16)"),
        (None, "None"),
        (0.25, "0.25"),
    ],
)
def test_value_is_shown_without_its_defaults(value: object, text: str) -> None:
    assert brief(value) == text
