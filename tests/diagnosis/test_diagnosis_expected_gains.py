"""What a fix is expected to gain: measured in simulation, and confirmed by quantizing with the fix."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import quantry
from quantry.auto.candidates import apply_fix, fixes
from quantry.diagnosis.causes import worth
from quantry.diagnosis.counterfactual import Gain
from quantry.diagnosis.fix import is_rounded_again
from quantry.evaluate.tasks.float_agreement import Closeness
from quantry.memo import MemoryStore
from quantry.recipe import Recipe, TuneOptions, find_preset
from quantry.targets import CheckedModel

LAYERS, WIDTH = 16, 8


def uneven_start() -> onnx.ModelProto:
    """The first layers of many detectors: channels that differ by a hundred times, which the second layer undoes."""
    random = np.random.default_rng(0)
    uneven = np.geomspace(0.1, 10.0, WIDTH).astype(np.float32)
    nodes, constants, name = [], [], "x"

    def layer(index: int, weight: np.ndarray, groups: int = 1) -> None:
        nonlocal name
        constants.append(numpy_helper.from_array(weight.astype(np.float32), f"w{index}"))
        nodes.append(helper.make_node("Conv", [name, f"w{index}"], [f"c{index}"], f"conv{index}", group=groups))
        nodes.append(helper.make_node("Sigmoid", [f"c{index}"], [f"s{index}"], f"sigmoid{index}"))
        nodes.append(helper.make_node("Mul", [f"c{index}", f"s{index}"], [f"y{index}"], f"mul{index}"))
        name = f"y{index}"

    layer(0, random.normal(size=(WIDTH, WIDTH, 1, 1)) * uneven[:, None, None, None])
    layer(1, (2.0 / uneven)[:, None, None, None], WIDTH)
    for index in range(2, LAYERS):
        layer(index, random.normal(size=(WIDTH, WIDTH, 1, 1)))
    shape = [1, WIDTH, 8, 8]
    graph = helper.make_graph(
        nodes,
        "uneven",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def samples() -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(1)
    return [{"x": random.normal(size=(1, WIDTH, 8, 8)).astype(np.float32)} for _ in range(12)]


def untuned(*, equalized: bool) -> Recipe:
    recipe = find_preset("RECOMMENDED-NPU").recipe
    # With tensors that fill their ranges, the first layers would cost nothing here.
    factors = replace(recipe.equalize, powers=None)
    equalize = factors if equalized else replace(factors, smooth=None, joint=None)
    return replace(recipe, tune=TuneOptions(), equalize=equalize)


def kept(recipe: Recipe) -> Closeness:
    return quantry.diagnose(
        quantry.quantize(uneven_start(), samples(), recipe, store=None), calibration=False
    ).closeness


def test_expected_gain_comes_true_and_is_tried_first() -> None:
    recipe = untuned(equalized=False)
    found = quantry.diagnose(quantry.quantize(uneven_start(), samples(), recipe, store=None), calibration=False)
    best = next(fix for fix in found.general_fixes if fix.depth)
    assert best.expected is not None
    assert best.expected > 3
    before, after = found.closeness, kept(apply_fix(recipe, best))
    assert before.mean_agreement is not None
    assert after.mean_agreement is not None
    gained = Gain(after.mean_decibels - before.mean_decibels, after.mean_agreement - before.mean_agreement)
    assert worth(gained) == pytest.approx(best.expected, rel=0.3)
    costly = [candidate.label for candidate in fixes(found) if not candidate.is_free]
    assert costly[0] == best.label


def test_tuned_model_tells_which_rounding_of_activations_costs_most() -> None:
    recipe = untuned(equalized=False)
    tuned = replace(recipe, tune=find_preset("RECOMMENDED-NPU").recipe.tune)
    assert tuned.tune.steps
    found = quantry.diagnose(quantry.quantize(uneven_start(), samples(), tuned, store=None), calibration=False)
    expected = {fix.label: fix.expected for fix in found.general_fixes}
    assert None not in [gain for label, gain in expected.items() if "in float" in label]
    costly = [candidate.label for candidate in fixes(found) if not candidate.is_free]
    assert costly[0].startswith("the first")
    first = next(fix for fix in found.general_fixes if fix.label == costly[0])
    assert kept(apply_fix(tuned, first)).mean_decibels > found.closeness.mean_decibels


def test_products_that_equalization_inserts_follow_their_layer() -> None:
    store, recipe = MemoryStore(), untuned(equalized=True)
    smoothed = quantry.quantize(uneven_start(), samples(), recipe, store=store)
    inserted = {node.name for node in smoothed.stages.equalized.value.model.graph if node.name.endswith("_scale")}
    assert inserted & set(smoothed.plan.quantized_nodes)
    found = quantry.diagnose(smoothed, calibration=False)
    first = next(fix for fix in found.general_fixes if fix.depth)
    assert not inserted & set(first.float_nodes)
    again = quantry.quantize(uneven_start(), samples(), apply_fix(recipe, first), store=store)
    products = {node.name: node for node in again.stages.equalized.value.model.graph if node.name.endswith("_scale")}
    floats = {name for name, node in products.items() if node.inputs[0].producer().name in first.float_nodes}
    assert not floats & set(again.plan.quantized_nodes)
    assert floats <= CheckedModel(again.model).excluded


def test_products_that_equalization_inserts_are_no_pieces_of_their_own() -> None:
    recipe = untuned(equalized=True)
    found = quantry.diagnose(quantry.quantize(uneven_start(), samples(), recipe, store=None), calibration=False)
    first = [fix for fix in found.general_fixes if fix.depth]
    assert first
    assert all(fix.pieces == 0 for fix in first)


def test_a_lone_layer_is_not_left_in_float_because_onnxruntime_would_round_it() -> None:
    result = quantry.quantize(uneven_start(), samples(), untuned(equalized=False), store=None)
    model, plan = result.stages.equalized.value.model, result.plan
    assert is_rounded_again(model, plan, ("conv3",))
    assert not is_rounded_again(model, plan, ("conv3", "sigmoid3", "mul3"))
    assert not is_rounded_again(model, plan, ("conv0", "sigmoid0", "mul0"))
    found = quantry.diagnose(result, calibration=False)
    fixes_of = [*found.general_fixes, *(fix for finding in found.findings for fix in finding.fixes)]
    assert not any(is_rounded_again(model, plan, fix.float_nodes) for fix in fixes_of)
