"""Each cause on a small network that has it: it is reported first, and its suggested fix helps."""

import dataclasses

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

import quantry
from quantry.recipe import (
    PRESETS,
    BiasCorrection,
    CrossLayer,
    EqualizeOptions,
    Gptq,
    NpuConversions,
    Recipe,
    SmoothQuant,
    TuneOptions,
)


def model_of(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> ' + text)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in weights.items()
    )
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    return model


def images(count: int = 8, mean: float = 0.0) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    return [(mean + rng.standard_normal((1, 4, 8, 8))).astype(np.float32) for _ in range(count)]


def diagnosed(model: onnx.ModelProto, data: list[np.ndarray], recipe: Recipe) -> quantry.Diagnosis:
    return quantry.diagnose(quantry.quantize(model, data, recipe, store=None))


def kept(model: onnx.ModelProto, data: list[np.ndarray], recipe: Recipe) -> float:
    return quantry.quantize(model, data, recipe, store=None).evaluation.metrics["sqnr"].value


def xint8(**parts: object) -> Recipe:
    recipe = PRESETS["XINT8"].recipe
    npu = NpuConversions(sigmoid_to_hard_sigmoid=False)
    return dataclasses.replace(recipe, prepare=dataclasses.replace(recipe.prepare, npu=npu), **parts)


def shifting() -> onnx.ModelProto:
    """A layer on data with a mean far from zero: what rounding does to the weights shifts the result."""
    wide = np.random.default_rng(3).standard_normal((8, 4, 3, 3)) / 5
    wide -= wide.mean(axis=(1, 2, 3), keepdims=True)  # the mean cancels in float
    wide[0, 0, 0, 0] = 8.0
    narrow = np.random.default_rng(4).standard_normal((4, 8, 1, 1))
    narrow[:, 0] = 0.01
    text = """g (float[1,4,8,8] x) => (float[1,4,6,6] y) { a = Conv(x, w, b) r = Relu(a) y = Conv(r, v, c) }"""
    return model_of(text, w=wide, v=narrow, b=np.ones(8), c=np.ones(4))


def test_shifted_means_call_for_bias_correction_which_helps() -> None:
    model, data = shifting(), images(mean=6.0)
    plain = Recipe()
    found = diagnosed(model, data, plain).findings[0]
    assert "shifts the mean" in found.title
    assert "BiasCorrection" in found.fix
    cured = dataclasses.replace(plain, tune=TuneOptions((BiasCorrection(),)))
    assert kept(model, data, cured) > kept(model, data, plain) + 3


def test_bias_correction_is_not_advised_to_who_has_it() -> None:
    recipe = dataclasses.replace(Recipe(), tune=TuneOptions((BiasCorrection(),)))
    assert "BiasCorrection" not in str(diagnosed(shifting(), images(mean=6.0), recipe))


def gated() -> onnx.ModelProto:
    """A SiLU whose channels are a thousand times apart, and a layer that reads the small ones."""
    first = np.random.default_rng(5).standard_normal((8, 4, 1, 1))
    size = np.array([40.0, 20.0, 0.05, 0.06, 0.05, 0.04, 0.05, 0.06])
    text = """
    g (float[1,4,8,8] x) => (float[1,8,8,8] y)
    { a = Conv(x, w) s = Sigmoid(a) m = Mul(a, s) y = Conv<group=8>(m, v) }
    """
    return model_of(text, w=first * size[:, None, None, None], v=(1 / size)[:, None, None, None])


def test_small_channels_of_an_activation_call_for_smooth_quant() -> None:
    found = diagnosed(gated(), images(), xint8()).findings[0]
    assert "very different size in 1 activation: channels of m" in found.title
    assert found.tensors == ("m",)
    assert "SmoothQuant" in found.fix


def test_smooth_quant_helps_there_and_is_not_advised_again() -> None:
    smooth = xint8(equalize=EqualizeOptions(CrossLayer(), SmoothQuant()))
    assert kept(gated(), images(), smooth) > kept(gated(), images(), xint8()) + 3
    assert "SmoothQuant (" not in str(diagnosed(gated(), images(), smooth))


def test_small_channels_that_no_one_reads_are_no_cause() -> None:
    model = gated()
    weight = next(one for one in model.graph.initializer if one.name == "v")
    reading = numpy_helper.to_array(weight).copy()
    reading[2:] = 0
    weight.CopyFrom(numpy_helper.from_array(reading, "v"))
    assert "activation: channels of" not in str(diagnosed(model, images(), xint8()))


def clipped() -> onnx.ModelProto:
    """Depthwise channels of very different size before a Clip, which no equalization passes."""
    size = np.geomspace(0.01, 4.0, 16)
    rng = np.random.default_rng(6)
    text = """
    g (float[1,4,8,8] x) => (float[1,4,8,8] y)
    { a = Conv(x, w) c = Clip(a, lo, hi) y = Conv(c, v) }
    """
    first = rng.standard_normal((16, 4, 1, 1)) * size[:, None, None, None]
    second = rng.standard_normal((4, 16, 1, 1)) / size[None, :, None, None]
    return model_of(text, w=first, v=second, lo=np.array(0.0), hi=np.array(6.0))


def test_clip_that_keeps_equalization_out_is_reported_with_the_switch() -> None:
    found = next(one for one in diagnosed(clipped(), images(), xint8()).findings if "weight" in one.title)
    assert "no equalization after 1 of them: Clip" in found.title
    assert found.fix.startswith("joint equalization (equalize.joint: {}), else Relu instead of Clip(0, 6)")


def test_per_channel_comes_first_where_the_target_may_have_it() -> None:
    plain = dataclasses.replace(Recipe(), equalize=EqualizeOptions(CrossLayer()))
    found = next(one for one in diagnosed(clipped(), images(), plain).findings if "weight" in one.title)
    assert found.fix.startswith("one scale per channel")


def pooled() -> onnx.ModelProto:
    weight = np.eye(4)[:, :, None, None]
    text = """
    g (float[1,4,8,8] x) => (float[1,2] y)
    { a = Conv(x, w) r = Relu(a) p = GlobalAveragePool(r) f = Flatten(p) y = Gemm(f, v) }
    """
    return model_of(text, w=weight, v=np.random.default_rng(7).standard_normal((4, 2)))


def test_range_that_a_pool_shares_is_reported_with_whom() -> None:
    data = images()
    for sample in data:
        sample[0, :, 0, 0] = 60.0
    recipe = xint8(tune=TuneOptions((Gptq(),)))
    diagnosis = diagnosed(pooled(), data, recipe)
    found = next(one for one in diagnosis.findings if "shared range" in one.title)
    assert found.tensors == ("p",)
    assert "which r needs for 0 .. " in found.title
    assert "scale.npu.align_pool: false" in found.fix


def test_weights_are_not_advised_for_nodes_without_them() -> None:
    data = images()
    for sample in data:
        sample[0, :, 0, 0] = 60.0
    assert "Gptq" not in str(diagnosed(pooled(), data, xint8()))


@pytest.mark.parametrize("preset", ["UINT8_DYNAMIC_QUANT", "CPU_INT8", "BFP16", "MATMUL_NBITS"])
def test_every_kind_of_format_is_diagnosed(preset: str) -> None:
    assert diagnosed(shifting(), images(2), PRESETS[preset].recipe).samples == 2


def test_shift_of_one_sample_is_not_taken_for_one_of_all() -> None:
    diagnosis = quantry.diagnose(quantry.quantize(shifting(), images(1, 6.0), Recipe(), store=None), samples=1)
    assert "shifts the mean" not in str(diagnosis)


def test_logits_that_a_sigmoid_squashes_may_be_cut_off() -> None:
    weight = 200 * np.random.default_rng(8).standard_normal((4, 4, 1, 1))
    model = model_of("g (float[1,4,8,8] x) => (float[1,4,8,8] y) { a = Conv(x, w) y = Sigmoid(a) }", w=weight)
    recipe = dataclasses.replace(PRESETS["RECOMMENDED-NPU"].recipe, tune=TuneOptions())
    diagnosis = diagnosed(model, images(), recipe)
    assert {tensor.name: tensor.sqnr for tensor in diagnosis.tensors}["a"] < 20
    assert "without any outlier" not in str(diagnosis)


def test_equal_highest_scores_are_reported_as_coarse_outputs() -> None:
    rng = np.random.default_rng(9)
    data = [rng.standard_normal((1, 4, 8, 8)).astype(np.float32) for _ in range(32)]
    # 64 classes with nearly equal scores and one outlier that stretches their range.
    weight = np.concatenate([rng.standard_normal((63, 4)) / 20, np.full((1, 4), -20.0)])[:, :, None, None]
    text = "g (float[1,4,8,8] x) => (float[1,64,1,1] y) { p = GlobalAveragePool(x) y = Conv(p, w) }"
    model = model_of(text, w=weight)
    result = quantry.quantize(model, data, xint8(), store=None)
    diagnosis = quantry.diagnose(result)
    sessions = [
        onnxruntime.InferenceSession(one, providers=["CPUExecutionProvider"])
        for one in (model.SerializeToString(), result.to_bytes())
    ]
    ours, theirs = ([one.run(None, {"x": sample})[0].ravel() for sample in data] for one in sessions)
    agreed = np.mean([a.argmax() == b.argmax() for a, b in zip(ours, theirs, strict=True)])
    shared = np.mean([(b == b.max()).sum() > 1 for b in theirs])
    assert shared > 0.2
    assert diagnosis.closeness.mean_ties == pytest.approx(shared)
    assert diagnosis.closeness.mean_agreement == pytest.approx(agreed)
    finding = next(one for one in diagnosis.findings if one.title.startswith("coarse outputs"))
    assert f"{shared:.0%} of the samples" in finding.title
    assert finding.tensors == ("y",)
    assert f"{agreed:.1%} of the decisions" in str(diagnosis)
