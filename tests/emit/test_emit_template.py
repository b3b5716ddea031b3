"""A graph that was written once and is filled with other parameters is the file that writing it again gives."""

import gc
import sys
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import onnx
import onnx_ir as ir
import pytest
from emit_cases import float_bytes, samples

import quantry
from quantry.graph.save import serialize
from quantry.memo import MemoryStore
from quantry.recipe import (
    DataType,
    EmitOptions,
    FloatBias,
    MinMax,
    Percentile,
    PerChannel,
    Recipe,
    TensorSpec,
    VitisDialect,
    VitisQdq,
    find_preset,
)

MODEL, DATA = float_bytes(), samples()


def with_weights(recipe: Recipe, weight: TensorSpec, **plan: object) -> Recipe:
    return replace(recipe, plan=replace(recipe.plan, weight=weight, **plan))


BASES = {
    "float scales": find_preset("U8S8_AAWS").recipe,
    "power of two": find_preset("XINT8").recipe,
    "int16 by opset conversion": find_preset("S16S8_ASWS").recipe,
    "int4 weights": with_weights(find_preset("S8S8_AAWS").recipe, TensorSpec(DataType.INT4, granularity=PerChannel())),
    "bfloat16 weights": with_weights(find_preset("U8S8_AAWS").recipe, TensorSpec(DataType.BFLOAT16), bias=FloatBias()),
    "positions in attributes": replace(find_preset("XINT8").recipe, emit=EmitOptions(VitisQdq(VitisDialect.VITIS))),
    "a pair for each reader": replace(find_preset("A8W8").recipe, emit=EmitOptions(dedicated_pairs=True)),
}


def with_method(base: Recipe, method: MinMax | Percentile) -> Recipe:
    return replace(base, scale=replace(base.scale, activation=method))


@pytest.mark.parametrize("case", BASES)
def test_filled_model_is_the_one_that_is_written_again(case, tmp_path):
    first, second = with_method(BASES[case], MinMax()), with_method(BASES[case], Percentile(97.0))
    store = MemoryStore()
    before = quantry.quantize(MODEL, DATA, first, store=store)
    filled = quantry.quantize(MODEL, DATA, second, store=store)
    again = quantry.quantize(MODEL, DATA, second, store=None)
    assert filled.to_bytes() != before.to_bytes()
    assert filled.to_bytes() == again.to_bytes() == serialize(again.model) == serialize(filled.model)
    assert filled.notes == again.notes
    filled.save(tmp_path / "model.onnx")
    assert (tmp_path / "model.onnx").read_bytes() == again.to_bytes()
    onnx.checker.check_model(str(tmp_path / "model.onnx"))


def test_second_of_two_like_models_writes_no_graph():
    base, store = BASES["float scales"], MemoryStore()
    first = quantry.quantize(MODEL, DATA, with_method(base, MinMax()), store=store)
    first.to_bytes()
    second = quantry.quantize(MODEL, DATA, with_method(base, Percentile(97.0)), store=store)
    assert isinstance(first.quantized.graph, ir.Model)
    assert not isinstance(second.quantized.graph, ir.Model)
    assert second.model is second.model


def test_positions_that_differ_are_another_graph():
    base, store = BASES["positions in attributes"], MemoryStore()
    kept = []
    for method in (MinMax(), Percentile(80.0)):
        kept.append(quantry.quantize(MODEL, DATA, with_method(base, method), store=store))
        kept[-1].to_bytes()
    assert all(isinstance(result.quantized.graph, ir.Model) for result in kept)


def test_threads_fill_one_graph_from_weights_in_one_file(tmp_path):
    onnx.save(onnx.load_from_string(MODEL), tmp_path / "float.onnx", save_as_external_data=True, size_threshold=0)
    recipes = [with_method(BASES["float scales"], Percentile(90.0 + step)) for step in range(8)]
    store = MemoryStore()
    held = quantry.quantize(tmp_path / "float.onnx", DATA, recipes[0], store=store)
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(6) as executor:
            made = list(
                executor.map(
                    lambda recipe: quantry.quantize(tmp_path / "float.onnx", DATA, recipe, store=store).to_bytes(),
                    recipes * 5,
                )
            )
    finally:
        sys.setswitchinterval(before)
    assert made[0] == held.to_bytes()
    assert made == [quantry.quantize(MODEL, DATA, recipe, store=None).to_bytes() for recipe in recipes] * 5


def test_nothing_is_held_when_results_are_gone():
    result = quantry.quantize(MODEL, DATA, BASES["float scales"], store=MemoryStore())
    graph, parts = weakref.ref(result.model.graph), weakref.ref(result.quantized.parts)
    del result
    gc.collect()
    assert graph() is None
    assert parts() is None
