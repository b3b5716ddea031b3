from collections import Counter
from dataclasses import replace

import emit_cases as cases
import numpy as np
import pytest

import quantry
from quantry.emit.blocks import BlockLayout, block_function
from quantry.errors import RecipeError
from quantry.recipe import PRESETS, DataType, EmitOptions, Format, Qdq, QOperator, VitisDialect, VitisQdq


@pytest.mark.parametrize("format_", [Qdq(), VitisQdq(VitisDialect.QUARK)])
def test_every_reader_has_a_pair_of_its_own_and_the_outputs_stay(format_: Format) -> None:
    recipe = PRESETS["S8S8_AAWS"].recipe
    written = [
        quantry.quantize(
            cases.float_bytes(), list(cases.samples()), replace(recipe, emit=EmitOptions(format_, wanted)), store=None
        )
        for wanted in (False, True)
    ]
    readers = [
        Counter(len(node.outputs[0].uses()) for node in result.model.graph if "equantizeLinear" in node.op_type)
        for result in written
    ]
    assert max(readers[0]) > 1
    assert set(readers[1]) <= {0, 1}
    shared, own = (cases.outputs(result.to_bytes()) for result in written)
    for name, values in shared.items():
        np.testing.assert_array_equal(values, own[name])


def test_format_without_pairs_raises() -> None:
    with pytest.raises(RecipeError, match="which have pairs"):
        EmitOptions(QOperator(), dedicated_pairs=True)


@pytest.mark.parametrize("dtype", [dtype for dtype in DataType if dtype.is_block])
def test_body_of_a_block_format_is_short(dtype: DataType) -> None:
    # onnxruntime copies it to every tensor, and plans memory in a time that grows faster than their number.
    text = block_function(dtype, BlockLayout(4, 1, dtype.block_size, 0), 17)
    computing = [line for line in text.splitlines() if "=" in line and "Constant" not in line]
    assert len(computing) <= 40
