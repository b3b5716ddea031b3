"""Every built-in of an extension point passes the suite that we ship for it; the others are next to their rooms."""

from dataclasses import replace

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from quantry.data import calibration_data
from quantry.data.sample_cache import SampleCache
from quantry.evaluate.tasks import OutputDistance, TopAccuracy
from quantry.graph.load import model_source
from quantry.graph.passes import fold_batch_norm, fold_constants, remove_identities
from quantry.plan.rules import RULES
from quantry.prepare import prepare
from quantry.recipe import (
    PRESETS,
    AdaQuant,
    AdaRound,
    BiasCorrection,
    Brecq,
    Distill,
    EmitOptions,
    FixNeuron,
    Gptq,
    PrepareOptions,
    QOperator,
    Tqt,
    VitisQdq,
    find_preset,
)
from quantry.testing.evaluator_suite import EvaluatorSuite
from quantry.testing.pass_suite import PassSuite
from quantry.testing.recipe_suite import FormatSuite, PresetSuite
from quantry.testing.rule_suite import RuleSuite
from quantry.testing.small_model import small_model, small_samples
from quantry.testing.tuning_suite import TuningSuite


def test_every_extension_point_of_the_architecture_has_a_suite():
    import quantry.testing

    page = quantry.testing.__doc__ or ""
    for point in (
        "operator",
        "calibration",
        "format",
        "preset",
        "graph pass",
        "finetuning",
        "metric",
        "evaluator",
        "store",
    ):
        assert f"\n{point} " in page


CONV_AND_BATCH_NORM = """
<ir_version: 8, opset_import: ["" : 17]>
conv_norm (float[N, 2, 6, 6] x) => (float[N, 4, 6, 6] y)
<float[4, 2, 3, 3] w, float[4] gamma, float[4] beta, float[4] mean, float[4] var> {
    a = Conv <pads = [1, 1, 1, 1]> (x, w)
    y = BatchNormalization (a, gamma, beta, mean, var)
}
"""
CONSTANTS = """
<ir_version: 8, opset_import: ["" : 17]>
constants (float[N, 4] x) => (float[N, 4] y) {
    one = Constant <value = float[4] {1.0, 2.0, 3.0, 4.0}> ()
    y = Mul (x, one)
}
"""
IDENTITIES = """
<ir_version: 8, opset_import: ["" : 17]>
identities (float[N, 4] x) => (float[N, 4] y) {
    a = Relu (x)
    b = Identity (a)
    y = Sigmoid (b)
}
"""
PASSES = {
    "fold_batch_norm": (fold_batch_norm, CONV_AND_BATCH_NORM),
    "fold_constants": (fold_constants, CONSTANTS),
    "remove_identities": (remove_identities, IDENTITIES),
}


def with_constants(text):
    """A model whose declared initializers have random positive data."""
    model = onnx.parser.parse_model(text)
    generator = np.random.default_rng(3)
    for value in list(model.graph.value_info):
        shape = [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]
        values = generator.uniform(0.5, 1.5, size=shape).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, value.name))
    del model.graph.value_info[:]
    return model


class TestEveryPass(PassSuite):
    @pytest.fixture(params=PASSES, ids=str)
    def chosen(self, request):
        return PASSES[request.param]

    @pytest.fixture
    def graph_pass(self, chosen):
        return chosen[0]

    @pytest.fixture
    def model(self, chosen):
        return with_constants(chosen[1])


FORMATS = {
    "QOperator": EmitOptions(format=QOperator()),
    "VitisQdq": EmitOptions(format=VitisQdq()),
    "FixNeuron": EmitOptions(format=FixNeuron()),
}


class TestEveryFormat(FormatSuite):
    LEAST_SQNR = 10.0  # MATMUL_NBITS writes four bits

    @pytest.fixture(params=["XINT8", "S8S8_AAWS", "UINT8_DYNAMIC_QUANT", "MATMUL_NBITS", *FORMATS])
    def recipe(self, request):
        if request.param in FORMATS:
            base = find_preset("XINT8" if request.param == "FixNeuron" else "U8S8_AAWS").recipe
            return replace(base, name=request.param, emit=FORMATS[request.param])
        return find_preset(request.param).recipe


class TestEveryPreset(PresetSuite):
    LEAST_SQNR = 5.0  # MX4 and MXFP4 have two to three bits of mantissa

    # One of each kind: tests/emit compares the models of all presets with kept ones.
    @pytest.fixture(params=["A8W8", "S16S8_ASWS", "CPU_INT8", "BF16", "MX9", "MXFP4E2M1", "RECOMMENDED-CPU"])
    def preset(self, request):
        return PRESETS[request.param]


STEPS = [
    BiasCorrection(),
    Gptq(),
    AdaRound(iterations=40),
    AdaQuant(iterations=40),
    Brecq(iterations=20),
    Tqt(iterations=20),
    Distill(iterations=20),
]


class TestEveryTuningAlgorithm(TuningSuite):
    @pytest.fixture(params=STEPS, ids=lambda step: type(step).__name__)
    def step(self, request):
        return request.param


class TestEveryRule(RuleSuite):
    @pytest.fixture(params=RULES, ids=lambda rule: type(rule).__name__)
    def rule(self, request):
        present = {node.op_type for node in small_model().graph.node}
        if not present & set(request.param.operators):
            pytest.skip("the small model has no such node")
        return request.param

    @pytest.fixture
    def model(self):
        return small_model()


@pytest.fixture
def float_path(tmp_path):
    path = tmp_path / "float.onnx"
    onnx.save(small_model(), path)
    return path


class TestEveryEvaluator(EvaluatorSuite):
    @pytest.fixture
    def model(self, float_path):
        return float_path

    @pytest.fixture
    def worse_model(self, tmp_path):
        path = tmp_path / "worse.onnx"
        onnx.save(small_model(seed=5), path)
        return path

    @pytest.fixture(params=["TopAccuracy", "OutputDistance"])
    def evaluator(self, request, float_path):
        inputs = prepare(model_source(small_model()), PrepareOptions()).inputs
        data = calibration_data(small_samples(24), inputs)
        if request.param == "OutputDistance":
            return OutputDistance(float_path, SampleCache(data))
        from quantry.runtime.sessions import deployment_session, run_session

        session = deployment_session(float_path)
        labels = [int(run_session(session, feeds)["y"].argmax()) for feeds in small_samples(24)]
        return TopAccuracy(SampleCache(data), np.array(labels))
