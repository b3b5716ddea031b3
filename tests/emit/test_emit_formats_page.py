from pathlib import Path

import pytest

from quantry.errors import RecipeError
from quantry.recipe import (
    DataType,
    EmitOptions,
    FixNeuron,
    FloatBias,
    Format,
    PerBlock,
    PlanOptions,
    PowerOfTwoScale,
    Qdq,
    QOperator,
    Recipe,
    TensorSpec,
    VitisDialect,
    VitisQdq,
)

PAGE = Path(__file__).parents[2] / "docs" / "formats" / "README.md"
COLUMNS: tuple[tuple[Format, ...], ...] = (
    (Qdq(),),
    (QOperator(),),
    (VitisQdq(VitisDialect.VAI), VitisQdq(VitisDialect.VITIS)),
    (VitisQdq(VitisDialect.QUARK),),
    (VitisQdq(VitisDialect.CONTRIB),),
    (FixNeuron(),),
)


def rows() -> dict[str, list[str]]:
    lines = PAGE.read_text().split("| type |")[1].splitlines()
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    return {row[0]: row[1:] for row in cells}


def is_accepted(dtype: DataType, format_: Format) -> bool:
    scale = {"scale": PowerOfTwoScale()} if isinstance(format_, FixNeuron) and dtype.is_integer else {}
    spec = TensorSpec(dtype, granularity=PerBlock()) if dtype.is_block else TensorSpec(dtype, **scale)
    try:
        Recipe(plan=PlanOptions(spec, spec, FloatBias()), emit=EmitOptions(format_))
    except RecipeError:
        return False
    return True


@pytest.mark.parametrize("dtype", DataType)
def test_page_says_what_the_recipe_accepts(dtype: DataType) -> None:
    for cell, formats in zip(rows()[dtype.value], COLUMNS, strict=True):
        assert {is_accepted(dtype, format_) for format_ in formats} == {cell != "-"}
