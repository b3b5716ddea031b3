"""4-bit recipes for language models: AWQ-like scaling, HQQ-like zero points, GPTQ, and 4-bit tables of embeddings."""

from dataclasses import replace

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import quantry
from onnx_oracle import from_text, run
from quantry.errors import RecipeError
from quantry.numerics.grid import Grid
from quantry.numerics.rounding import fake_quantize
from quantry.numerics.tensor_params import TensorParams
from quantry.recipe import PRESETS, DataType, HalfQuadratic, MinMax, MinMSE, PerGroup, ScaleOptions, TensorSpec
from quantry.scale.ranges.half_quadratic import half_quadratic_groups
from quantry.scale.weights import constant_params

WIDTH, WORDS, INNER = 64, 90, 128
BASE = replace(PRESETS["MATMUL_NBITS_HQQ"].recipe, scale=ScaleOptions(weight=MinMSE()))


def language_model(norm: str = "LayerNormalization") -> onnx.ModelProto:
    """Return two feed-forward blocks whose activations differ by orders of magnitude between channels."""
    random = np.random.default_rng(1)
    weights = {"table": random.standard_normal((WORDS, WIDTH)), "head": random.standard_normal((WIDTH, WORDS)) / 8}
    text = (
        f'<ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]> g (int64[1,T] ids) => (float[1,T,{WORDS}] y) {{'
    )
    text += "h0 = Gather (table, ids)"
    for at in range(2):
        weights[f"g{at}"] = np.exp(random.standard_normal(WIDTH) * 1.5)
        weights[f"u{at}"] = random.standard_t(5, (WIDTH, INNER)) / 8
        weights[f"d{at}"] = random.standard_t(5, (INNER, WIDTH)) / 11
        if norm == "LayerNormalization":
            text += f" n{at} = LayerNormalization <axis = -1> (h{at}, g{at})"
        else:
            text += f" n{at} = com.microsoft.{norm} (h{at}, h{at}, g{at})"
        text += f" m{at} = MatMul (n{at}, u{at}) r{at} = Relu (m{at}) o{at} = MatMul (r{at}, d{at})"
        text += f" h{at + 1} = Add (h{at}, o{at})"
    text += " y = MatMul (h2, head) }"
    model = from_text(text, **{name: array.astype(np.float32) for name, array in weights.items()})
    # Exporters describe the results of operators that ONNX does not know.
    named = [f"{letter}{at}" for at in range(2) for letter in "nmro"] + ["h1", "h2"]
    widths = {"m": INNER, "r": INNER}
    model.graph.value_info.extend(
        onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, "T", widths.get(name[0], WIDTH)])
        for name in named
    )
    return model


def samples(seed: int, count: int) -> list[dict[str, np.ndarray]]:
    random = np.random.default_rng(seed)
    return [{"ids": random.integers(0, WORDS, (1, 20))} for _ in range(count)]


def decibels(model: onnx.ModelProto, recipe: object) -> float:
    content = quantry.quantize(model.SerializeToString(), samples(2, 12), recipe, store=None).to_bytes()
    session = ort.InferenceSession(content)
    pairs = [(run(model, sample)["y"], session.run(["y"], sample)[0]) for sample in samples(3, 6)]
    noise = sum(np.square(a - b).sum() for a, b in pairs)
    return float(10 * np.log10(sum(np.square(a).sum() for a, _ in pairs) / noise))


@pytest.mark.parametrize("norm", ["LayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_awq_is_better_than_rounding_if_channels_differ(norm: str) -> None:
    model = language_model(norm)
    assert decibels(model, "MATMUL_NBITS_AWQ") > decibels(model, BASE) + 0.5


def test_every_4_bit_preset_runs_and_gptq_is_best() -> None:
    model = language_model()
    found = {name: decibels(model, f"MATMUL_NBITS_{name}") for name in ("GPTQ", "AWQ", "HQQ")}
    plain = decibels(model, replace(BASE, scale=ScaleOptions(weight=MinMax())))
    assert min(found.values()) > plain
    assert max(found, key=lambda name: found[name]) == "GPTQ"


def test_half_quadratic_is_never_worse_than_the_whole_range_and_near_the_best() -> None:
    rows = np.random.default_rng(0).standard_t(4, (200, 64)).astype(np.float32)
    spec = TensorSpec(DataType.UINT4, symmetric=False)
    found = half_quadratic_groups(rows, Grid.of(spec), HalfQuadratic())
    params = [
        TensorParams(DataType.UINT4, found.scale, found.zero_point, 0),
        *(constant_params(rows, spec, 0, method) for method in (MinMax(), MinMSE())),
    ]
    errors = [np.square(fake_quantize(rows, entry) - rows).sum(axis=1) for entry in params]
    assert (errors[0] <= errors[1] * (1 + 1e-5)).all()
    assert errors[0].sum() < 0.96 * errors[1].sum()
    assert errors[0].sum() < 1.05 * errors[2].sum()


def test_half_quadratic_needs_zero_points() -> None:
    spec = TensorSpec(DataType.INT4, granularity=PerGroup(32))
    with pytest.raises(RecipeError, match="HalfQuadratic\\(\\) needs asymmetric weights"):
        constant_params(np.ones((64, 4), np.float32), spec, 0, HalfQuadratic())


@pytest.mark.parametrize("spec", [TensorSpec(DataType.UINT4, symmetric=False), TensorSpec(DataType.INT4)])
def test_tables_are_read_by_gather_block_quantized(spec: TensorSpec) -> None:
    recipe = PRESETS["RECOMMENDED-LLM-EMBEDDINGS"].recipe
    weight = replace(spec, granularity=PerGroup(32))
    model = language_model()
    result = quantry.quantize(
        model.SerializeToString(), samples(2, 12), replace(recipe, plan=replace(recipe.plan, weight=weight)), store=None
    )
    written = onnx.load_model_from_string(result.to_bytes())
    assert "GatherBlockQuantized" in {node.op_type for node in written.graph.node}
    assert "table" not in {entry.name for entry in written.graph.initializer}
    assert written.ir_version >= 10
    # Rows that are looked up are exactly those of the quantized table.
    proto = onnx.ModelProto()
    proto.CopyFrom(written)
    node = next(node for node in proto.graph.node if node.op_type == "GatherBlockQuantized")
    proto.graph.output.append(onnx.helper.make_tensor_value_info(node.output[0], onnx.TensorProto.FLOAT, None))
    found = run(proto, samples(5, 1)[0])[node.output[0]]
    table = next(onnx.numpy_helper.to_array(entry) for entry in model.graph.initializer if entry.name == "table")
    expected = fake_quantize(table, result.params.tensors["table"])[samples(5, 1)[0]["ids"]]
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_tables_stay_float_in_other_recipes() -> None:
    plan = quantry.quantize(language_model().SerializeToString(), samples(2, 4), "MATMUL_NBITS_HQQ", store=None).plan
    assert "table" not in plan.weights
