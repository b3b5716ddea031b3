"""Options that give single tensors other types: ``MixedPrecisionTensor`` and ``TensorQuantOverrides``."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from quantry.errors import RecipeError, nearest_spelling
from quantry.onnx.enums import TYPES, own_member
from quantry.onnx.options.draft import Draft
from quantry.onnx.options.option_row import Kind, OptionRow
from quantry.onnx.type_specs import spec_of
from quantry.recipe import PerChannel, TensorSpec, TensorTypes

_KNOWN = ("quant_type", "symmetric", "axis")
_NOT_HAD = {
    "scale": "scales are found from data",
    "zero_point": "zero points are found from data",
    "rmin": "ranges are found from data",
    "rmax": "ranges are found from data",
    "reduce_range": "it is for the weights of the whole model; use the field reduce_range",
    "convert": "pairs that convert between types are put where neighbours differ",
}


def _mixed(draft: Draft, value: Mapping[Any, Iterable[str]]) -> Draft:
    if not draft.tensor_types:
        return draft.noted("MixedPrecisionTensor has no effect without specific_tensor_precision")
    where = "extra_options['MixedPrecisionTensor']"
    for kind, names in value.items():
        if isinstance(names, str):
            raise RecipeError(f"{where} must hold lists of names, got {names!r} of type str for {kind}")
        spec = spec_of(own_member(kind, TYPES, where), where)
        draft = _with(draft, tuple(names), _symmetric(spec, draft))
    return draft


def _overrides(draft: Draft, value: Mapping[str, Any]) -> Draft:
    for name, entries in value.items():
        where = f"extra_options['TensorQuantOverrides'][{name!r}]"
        listed = [entries] if isinstance(entries, Mapping) else list(entries)
        if len(listed) != 1 or not isinstance(listed[0], Mapping):
            raise RecipeError(f"{where} must be a list of one dict, got {entries!r}; a 'axis' gives channels scales")
        draft = _with(draft, (name,), _overridden(draft, listed[0], where))
    return draft


def _overridden(draft: Draft, entry: Mapping[str, Any], where: str) -> TensorSpec:
    for key in entry:
        if key in _NOT_HAD:
            raise RecipeError(f"{where}[{key!r}] cannot be had: {_NOT_HAD[key]}; leave it out")
        if key not in _KNOWN:
            raise RecipeError(f"{where} must hold known keys, got {key!r}{nearest_spelling(str(key), _KNOWN)}")
    spec = draft.plan.weight if "axis" in entry else draft.plan.activation
    if "quant_type" in entry:
        typed = spec_of(own_member(entry["quant_type"], TYPES, f"{where}['quant_type']"), where)
        spec = replace(_symmetric(typed, draft), scale=spec.scale if typed.dtype.is_integer else typed.scale)
    if "symmetric" in entry:
        spec = replace(spec, symmetric=bool(entry["symmetric"]))
    return replace(spec, granularity=PerChannel(entry["axis"])) if "axis" in entry else spec


def _symmetric(spec: TensorSpec, draft: Draft) -> TensorSpec:
    return replace(spec, symmetric=draft.plan.activation.symmetric or not spec.dtype.is_integer)


def _with(draft: Draft, names: tuple[str, ...], spec: TensorSpec) -> Draft:
    return replace(draft, plan=replace(draft.plan, tensors=(*draft.plan.tensors, TensorTypes(names, spec))))


ROWS = (
    OptionRow(
        "TensorQuantOverrides",
        Kind.DICT,
        "{}",
        "Types of single tensors, by name: [{'quant_type', 'symmetric', 'axis'}]; 'axis' is for weights. Ranges and "
        "scales cannot be given.",
        "plan.tensors",
        _overrides,
    ),
    OptionRow(
        "MixedPrecisionTensor",
        Kind.DICT,
        "{}",
        "Names of tensors by type, with specific_tensor_precision=True; symmetry is that of activations.",
        "plan.tensors",
        _mixed,
    ),
)
