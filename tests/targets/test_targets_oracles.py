"""Models for vitisai pass the rules that onnxsim measured on a Ryzen AI NPU, and both checks find the same nodes."""

import dataclasses
import importlib.util
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest
from onnxruntime.quantization import quantize_dynamic
from target_models import network, samples

import quantry
import quantry.recipe
from quantry.diagnosis import diagnose_pair
from quantry.targets import CheckedModel, check_model
from quantry.targets.compare import compare_models


def oracle() -> Callable[[onnx.ModelProto], list[str]]:
    """Return onnxsim's check; its module is loaded alone, because the package takes seconds."""
    package = importlib.util.find_spec("onnxsim")
    file = None if package is None or package.origin is None else Path(package.origin).with_name("vitisai_target.py")
    if file is None or not file.exists():
        pytest.skip("onnxsim with its VitisAI rules is not installed: pip install 'onnxsim>=0.8'")
    spec = importlib.util.spec_from_file_location("onnxsim_vitisai_target", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    check: Callable[[onnx.ModelProto], list[str]] = module.check_vitisai_support
    return check


@pytest.mark.parametrize("preset", ["XINT8", "RECOMMENDED-NPU"])
def test_model_for_vitisai_passes_both_checks(preset: str) -> None:
    check = oracle()
    model = quantry.quantize(network(), samples(), preset, target="vitisai", store=None).to_bytes()
    assert check_model(model, "vitisai") == ()
    assert check(onnx.load_from_string(model)) == []


def test_both_checks_find_convolutions_with_omitted_attributes() -> None:
    check = oracle()
    model = quantry.quantize(network(), samples(), "XINT8", target="npu-int8", store=None).to_bytes()
    found = check(onnx.load_from_string(model))
    broken = check_model(model, "vitisai")
    ours = {violation.node for violation in broken if violation.rule == "written attributes"}
    assert {message.split("'")[1] for message in found} == ours
    assert len(ours) == 2
    assert {violation.rule for violation in broken} == {"written attributes", "static shapes"}


def test_nodes_in_any_order_are_compared_and_diagnosed() -> None:
    """AMD Quark writes nodes before those that they read; onnxruntime runs such files."""
    model = onnx.load_from_string(quantry.quantize(network(), samples(), "XINT8", store=None).to_bytes())
    nodes = [*reversed(model.graph.node)]
    del model.graph.node[:]
    model.graph.node.extend(nodes)
    diagnosis = diagnose_pair(network(), model, samples())
    assert diagnosis.gathered
    assert compare_models(network(), model, samples()).metrics["sqnr"].value > 10
    assert check_model(model, "npu-int8") == ()


def test_dynamic_model_of_onnxruntime_is_checked(tmp_path: Path) -> None:
    onnx.save(network(), tmp_path / "float.onnx")
    quantize_dynamic(tmp_path / "float.onnx", tmp_path / "dynamic.onnx")
    assert check_model(tmp_path / "dynamic.onnx", "ort-cpu") == ()
    assert {violation.rule for violation in check_model(tmp_path / "dynamic.onnx", "tensorrt")} == {"format"}


def test_nodes_that_the_recipe_leaves_float_are_no_violation() -> None:
    recipe = quantry.recipe.PRESETS["XINT8"].recipe
    first = network().graph.node[0].name or "Conv_0"
    selection = dataclasses.replace(recipe.plan.selection, exclude=(first,))
    excluding = dataclasses.replace(recipe, plan=dataclasses.replace(recipe.plan, selection=selection))
    model = onnx.load_from_string(
        quantry.quantize(network(), samples(), excluding, target="vitisai", store=None).to_bytes()
    )
    assert CheckedModel(model).excluded == {first}
    assert check_model(model, "vitisai") == ()
    # Without the recipe that says so, nobody knows that it was meant.
    del model.metadata_props[:]
    assert first in {violation.node for violation in check_model(model, "vitisai")}
