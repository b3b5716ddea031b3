"""A kernel of the runtime, or of a vendor's library, is taken instead of the function of the same name."""

import emit_cases as cases
import numpy as np
import onnx.parser
import onnxruntime as ort
import pytest

from quantry.recipe import FixNeuron


def run(domain: str, operator: str, options: ort.SessionOptions | None = None) -> np.ndarray:
    """Run a model whose function of that name negates."""
    model = onnx.parser.parse_model(f"""
        <ir_version: 10, opset_import: ["" : 17, "{domain}" : 1]>
        g (float[n] x) => (float[n] y) {{ y = {domain}.{operator}(x) }}
        <domain: "{domain}", opset_import: ["" : 17]> {operator} (x) => (y) {{ y = Neg(x) }}""")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.array([1.0, 2.0], np.float32)})[0]


def test_kernel_that_the_runtime_has_wins_over_the_function() -> None:
    np.testing.assert_allclose(run("com.microsoft", "Gelu"), [0.8413447, 1.9544997], rtol=1e-6)


def test_function_runs_where_there_is_no_kernel() -> None:
    np.testing.assert_array_equal(run("ai.onnx.contrib", "FixNeuron"), [-1, -2])


def test_kernel_of_a_registered_library_wins_over_the_function_that_we_write() -> None:
    extensions = pytest.importorskip("onnxruntime_extensions")
    calls = []

    @extensions.onnx_op(
        op_type="FixNeuron",
        inputs=[extensions.PyCustomOpDef.dt_float] * 2 + [extensions.PyCustomOpDef.dt_int8],
        outputs=[extensions.PyCustomOpDef.dt_float],
        attrs={"bit_width": extensions.PyCustomOpDef.dt_string, "pos": extensions.PyCustomOpDef.dt_string},
    )
    def fix_neuron(x: np.ndarray, scale: np.ndarray, zero_point: np.ndarray, **attributes: str) -> np.ndarray:
        calls.append(attributes)
        return x

    options = ort.SessionOptions()
    options.register_custom_ops_library(extensions.get_library_path())
    model = cases.emitted(cases.XINT8, FixNeuron()).to_bytes()
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    session.run(None, cases.samples()[0])
    assert calls
    assert all({"bit_width", "pos"} <= set(attributes) for attributes in calls)
