"""The dictionaries that describe AMD Quark's block number formats."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from quantry.errors import RecipeError, nearest_spelling
from quantry.onnx.options.draft import Draft
from quantry.recipe import DataType, PerBlock, TensorSpec

_BFP = {("to_bfp", 16): DataType.BFP16}
_BFP |= {("to_bfp_prime", bits): dtype for bits, dtype in ((11, DataType.MX4), (13, DataType.MX6), (16, DataType.MX9))}
_MX = {
    "fp8_e5m2": DataType.MXFP8E5M2,
    "fp8_e4m3": DataType.MXFP8E4M3,
    "fp6_e3m2": DataType.MXFP6E3M2,
    "fp6_e2m3": DataType.MXFP6E2M3,
    "fp4_e2m1": DataType.MXFP4E2M1,
    "int8": DataType.MXINT8,
}
_BFP_TYPES = tuple(_BFP.values())
_MX_TYPES = tuple(_MX.values())
_BFP_FIXED = {"rounding_mode": 2, "sub_block_size": 2, "sub_block_shift_bits": 1, "convert_to_bfloat_before_bfp": 0}
_MX_FIXED = {"rounding_mode": 2}


def bfp_attributes(draft: Draft, value: Mapping[str, Any]) -> Draft:
    """Apply ``BFPAttributes`` to the tensors of a block floating-point type."""
    _check(value, "BFPAttributes", ("bfp_method", "bit_width", "axis", "block_size"), _BFP_FIXED)
    choice = (value.get("bfp_method", "to_bfp"), value.get("bit_width", 16))
    if choice not in _BFP:
        raise RecipeError(
            "extra_options['BFPAttributes'] must have bfp_method 'to_bfp' with bit_width 16, or 'to_bfp_prime' with "
            f"bit_width 11, 13 or 16; got {choice[0]!r} with {choice[1]!r}"
        )
    return _with_blocks(draft, _BFP_TYPES, _BFP[choice], value, "BFPAttributes")


def mx_attributes(draft: Draft, value: Mapping[str, Any]) -> Draft:
    """Apply ``MXAttributes`` to the tensors of a microscaling type."""
    _check(value, "MXAttributes", ("element_dtype", "axis", "block_size"), _MX_FIXED)
    element = value.get("element_dtype", "int8")
    if element not in _MX:
        raise RecipeError(
            f"extra_options['MXAttributes']['element_dtype'] must be one of {', '.join(_MX)}, got {element!r}"
            f"{nearest_spelling(str(element), _MX)}"
        )
    return _with_blocks(draft, _MX_TYPES, _MX[element], value, "MXAttributes")


def _check(value: Mapping[str, Any], key: str, known: tuple[str, ...], fixed: Mapping[str, int]) -> None:
    for name, given in value.items():
        if name not in (*known, *fixed):
            raise RecipeError(
                f"extra_options[{key!r}] has the keys {', '.join((*known, *fixed))}; got {name!r}"
                f"{nearest_spelling(name, (*known, *fixed))}"
            )
        if name in fixed and given != fixed[name]:
            raise RecipeError(
                f"extra_options[{key!r}][{name!r}] must be {fixed[name]}, the only form that is written, got {given!r}"
            )


def _with_blocks(
    draft: Draft, family: tuple[DataType, ...], dtype: DataType, value: Mapping[str, Any], key: str
) -> Draft:
    blocks = PerBlock(size=value.get("block_size"), axis=value.get("axis", 1))
    if blocks.size == dtype.block_size:
        blocks = replace(blocks, size=None)
    spec = TensorSpec(dtype, granularity=blocks)
    plan = draft.plan
    if plan.activation.dtype not in family and plan.weight.dtype not in family:
        return draft.noted(f"{key} has no effect without a type of {'QBFP' if family is _BFP_TYPES else 'QMX'}")
    if plan.activation.dtype in family:
        plan = replace(plan, activation=spec)
    if plan.weight.dtype in family:
        plan = replace(plan, weight=spec)
    return replace(draft, plan=plan)
