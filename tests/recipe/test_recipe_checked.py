"""Option dataclasses validate the types of their fields."""

from typing import Any

import numpy as np
import pytest

from quantry.errors import RecipeError
from quantry.recipe import (
    EqualizeOptions,
    EvaluateOptions,
    LayerWisePercentile,
    ObserveOptions,
    Percentile,
    PerChannel,
    PlanOptions,
    Recipe,
    ScaleOptions,
    Selection,
    Subgraph,
    TensorSpec,
    from_plain,
)

GRANULARITY = "TensorSpec.granularity must be PerTensor(), PerChannel(), PerBlock() or PerGroup()"
MISTAKES: list[tuple[Any, dict[str, Any], str]] = [
    (
        TensorSpec,
        {"granularity": "PerChannel"},
        f"{GRANULARITY}, got 'PerChannel'; did you mean PerChannel()?",
    ),
    (
        TensorSpec,
        {"granularity": PerChannel},
        f"{GRANULARITY}, got the class PerChannel; did you mean PerChannel()?",
    ),
    (TensorSpec, {"dtype": "uint8"}, "TensorSpec.dtype must be a DataType, got 'uint8'; did you mean DataType.UINT8?"),
    (TensorSpec, {"symmetric": 1}, "TensorSpec.symmetric must be bool, got 1"),
    (PerChannel, {"axis": "0"}, "PerChannel.axis must be int or None, got '0'"),
    (ObserveOptions, {"samples": True}, "ObserveOptions.samples must be int or None, got True"),
    (Percentile, {"percentile": "99"}, "Percentile.percentile must be float, got '99'"),
    (EqualizeOptions, {"cross_layer": True}, "EqualizeOptions.cross_layer must be CrossLayer() or None, got True"),
    (PlanOptions, {"weight": "int8"}, "PlanOptions.weight must be TensorSpec(), got 'int8'"),
    (Selection, {"exclude": "conv"}, "Selection.exclude must be a tuple, got 'conv'"),
    (Selection, {"exclude": ("a", 5)}, "Selection.exclude[1] must be str, got 5"),
    (Recipe, {"name": 5}, "Recipe.name must be str, got 5"),
]


@pytest.mark.parametrize(("options", "fields", "message"), MISTAKES)
def test_wrong_type_raises_with_field_and_choices(options: Any, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(RecipeError) as caught:
        options(**fields)
    assert str(caught.value) == message


def test_misspelt_choice_suggests_the_nearest() -> None:
    with pytest.raises(RecipeError, match=r"did you mean Percentile\(\)\?"):
        ScaleOptions(activation="percentil")  # type: ignore[arg-type]


def test_misspelt_field_suggests_the_nearest() -> None:
    with pytest.raises(RecipeError, match="Percentile must be given known arguments, got 'percentil'; did you mean"):
        Percentile(percentil=99.9)  # type: ignore[call-arg]
    with pytest.raises(RecipeError, match="did you mean 'evaluate'"):
        Recipe(evaluation=EvaluateOptions())  # type: ignore[call-arg]


def test_lists_become_tuples_at_any_depth() -> None:
    given: Any = ["a", "b"]
    assert Selection(exclude=given) == Selection(exclude=("a", "b"))
    assert hash(Selection(exclude_subgraphs=[Subgraph(given, ["c"])])) is not None  # type: ignore[arg-type, list-item]
    assert EvaluateOptions(metrics=["l2"]).metrics == ("l2",)  # type: ignore[arg-type]


def test_numbers_become_the_builtin_type_of_their_field() -> None:
    assert type(Percentile(99).percentile) is float
    assert type(Percentile(np.float32(99.5)).percentile) is float  # type: ignore[arg-type]
    assert type(ObserveOptions(np.int64(3)).samples) is int  # type: ignore[arg-type]


@pytest.mark.parametrize("fraction", [0.9999, 1, 49.9])
def test_percentile_that_looks_like_a_fraction_raises(fraction: float) -> None:
    for make in (Percentile, lambda value: LayerWisePercentile((99.9, value))):
        with pytest.raises(RecipeError, match="percent, not a fraction"):
            make(fraction)
    with pytest.raises(RecipeError, match="percent, not a fraction"):
        from_plain({"scale": {"activation": {"kind": "Percentile", "percentile": fraction}}})
