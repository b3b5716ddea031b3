"""The whole stage, against outputs of onnxruntime that the test computes by itself."""

import io
import sys
import weakref

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest
from onnx import parser

from quantry.data.open_data import calibration_data
from quantry.errors import DataError, InternalError, ModelError, RecipeError
from quantry.evaluate import comparison, evaluate, stage
from quantry.graph.float_model import FloatModel
from quantry.graph.quantized_model import QuantizedModel
from quantry.graph.save import serialize
from quantry.memo import DirectoryStore, Memo, Trace, fingerprint
from quantry.recipe import EvaluateOptions
from quantry.runtime.progress import progress
from quantry.runtime.sessions import deployment_session

HEAD = '<ir_version: 8, opset_import: ["" : 13]>'
FLOAT = (
    HEAD
    + """
net (float[1,3,4] x) => (float[1,3,4] y, float[1,3,1] z, int64[1,3] best)
{
    t = Tanh(x)
    y = Neg(t)
    z = ReduceSum <keepdims = 1> (t, last)
    best = ArgMax <axis = 2, keepdims = 0> (t)
}
"""
).replace("int64[1,3] best)\n", "int64[1,3] best)\n<int64[1] last = {-1}>\n")
QUANTIZED = FLOAT.replace("{-1}>", "{-1}, float s = {0.05}, int8 o = {0}>").replace(
    "t = Tanh(x)", "f = Tanh(x)  q = QuantizeLinear(f, s, o)  t = DequantizeLinear(q, s, o)"
)
SAMPLES = [np.random.default_rng(seed).normal(0, 1, (1, 3, 4)).astype(np.float32) for seed in range(5)]


def _ir(text):
    return ir.from_proto(parser.parse_model(text))


def _arguments(float_text=FLOAT, quantized_text=QUANTIZED, samples=SAMPLES, **options):
    reference = FloatModel(_ir(float_text))
    data = calibration_data([{"x": sample} for sample in samples], reference.inputs)
    return reference, QuantizedModel(_ir(quantized_text)), data, EvaluateOptions(**options)


def _outputs(text, sample):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        parser.parse_model(text).SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return session.run(None, {"x": sample})


def test_scores_are_those_of_the_outputs():
    result = evaluate(*_arguments(metrics=("l1", "sqnr")))
    pairs = [(_outputs(FLOAT, sample), _outputs(QUANTIZED, sample)) for sample in SAMPLES]
    l1 = [[np.abs(one - other).mean() for one, other in zip(*pair, strict=True)] for pair in pairs]
    for index, name in enumerate(("y", "z")):
        expected = [scores[index] for scores in l1]
        np.testing.assert_allclose(result.outputs[name]["l1"].per_sample, expected, rtol=1e-5)
        assert result.outputs[name]["l1"].value == pytest.approx(np.mean(expected))
    wrong = [np.mean(one[2] != other[2]) for one, other in pairs]
    np.testing.assert_array_equal(result.outputs["best"]["l1"].per_sample, wrong)
    assert result.samples == 5
    assert list(result.outputs) == ["y", "z", "best"]
    assert not result.metrics["l1"].higher_is_better
    assert result.metrics["sqnr"].higher_is_better


def test_all_outputs_together_are_one_vector():
    result = evaluate(*_arguments(metrics=("l1",)))
    apart = [result.outputs[name]["l1"].per_sample for name in ("y", "z", "best")]
    np.testing.assert_allclose(result.metrics["l1"].per_sample, (12 * apart[0] + 3 * apart[1] + 3 * apart[2]) / 18)


def test_a_single_output_scores_the_same_alone_and_together():
    float_text = HEAD + "n (float[1,3,4] x) => (float[1,3,4] y) { y = Tanh(x) }"
    result = evaluate(*_arguments(float_text, float_text.replace("y = Tanh(x)", "t = Sin(x) y = Tanh(t)")))
    assert list(result.metrics) == ["l2", "cosine", "sqnr"]
    for name, score in result.metrics.items():
        np.testing.assert_array_equal(score.per_sample, result.outputs["y"][name].per_sample)


def test_the_float_model_next_to_itself_has_the_best_scores():
    result = evaluate(*_arguments(quantized_text=FLOAT, metrics=("l1", "l2", "cos", "psnr", "ssim", "sqnr")))
    values = {name: score.value for name, score in result.metrics.items()}
    assert values == pytest.approx({"l1": 0, "l2": 0, "cosine": 1, "psnr": 150, "ssim": 1, "sqnr": 150})


def test_sizes_are_those_of_the_files():
    reference, quantized, data, options = _arguments()
    result = evaluate(reference, quantized, data, options)
    assert result.float_bytes == len(serialize(reference.model))
    assert result.quantized_bytes == len(quantized.to_bytes())


def test_a_metric_that_was_asked_for_twice_is_computed_once():
    assert list(evaluate(*_arguments(metrics=("COS", "l1", "cosine"))).metrics) == ["cosine", "l1"]


def test_without_metrics_no_sample_is_compared(monkeypatch):
    monkeypatch.setattr(comparison, "run_session", lambda *_: pytest.fail("nothing was asked for"))
    result = evaluate(*_arguments(metrics=()))
    assert (dict(result.metrics), dict(result.outputs), result.samples) == ({}, {}, 0)
    assert result.float_bytes > 0


def test_an_unknown_metric_fails_before_any_work(monkeypatch):
    monkeypatch.setattr(onnxruntime, "InferenceSession", lambda *_, **__: pytest.fail("too late"))
    with pytest.raises(RecipeError, match="did you mean 'cosine'"):
        evaluate(*_arguments(metrics=("cosin",)))


def test_nan_in_the_quantized_output_is_the_worst_score_with_a_note():
    broken = QUANTIZED.replace("y = Neg(t)", "l = Log(t)  k = Sub(l, l)  y = Sub(k, t)")
    result = evaluate(*_arguments(quantized_text=broken, metrics=("l1", "cosine")))
    assert result.metrics["l1"].value == np.inf
    assert result.outputs["y"]["cosine"].value == -1
    assert result.outputs["z"]["cosine"].value > 0.9
    (note,) = result.notes
    assert str(note).startswith(
        "output 'y' of the quantized model has NaN or infinite values where the float model's are finite"
    )
    assert str(note).endswith("in 5 of 5 samples; these have the worst possible score")


def test_another_number_of_rows_is_the_worst_score_with_a_note():
    float_text = HEAD + "n (float[1,4] x) => (int64[2,k] y) { r = Relu(x)  y = NonZero(r) }"
    quantized_text = float_text.replace("r = Relu(x)", "a = Abs(x)  r = Relu(a)")
    samples = [np.array([[1, 2, 3, 4]], np.float32), np.array([[1, -2, 3, 4]], np.float32)]
    result = evaluate(*_arguments(float_text, quantized_text, samples, metrics=("cosine",)))
    np.testing.assert_array_equal(result.metrics["cosine"].per_sample, [1, -1])
    assert "another shape than the float model's in 1 of 2 samples" in str(result.notes[0])


@pytest.mark.parametrize(
    ("float_text", "quantized_text", "message"),
    [
        (
            "n (float[1,3,4] x) => (float[1,3,4] y) { y = Tanh(x) }",
            "n (float[1,3,4] x) => (float[1,3,4] w) { w = Tanh(x) }",
            r"must have the float model's outputs \['y'\], got \['w'\]",
        ),
        (
            "n (float[1,3,4] x) => (float[1,3,4] y) { y = Tanh(x) }",
            "n (float[1,3,4] x) => (float[1,4,3] y) { y = Transpose <perm = [0, 2, 1]> (x) }",
            r"here \[1, 3, 4\], got \[1, 4, 3\]; output 'y'",
        ),
        (
            "n (float[1,3,4] x) => (float[1,3,4] y) { y = Tanh(x) }",
            "n (float[1,3,4] x) => (float[1,12] y) { y = Flatten(x) }",
            r"here \[1, 3, 4\], got \[1, 12\]; output 'y'",
        ),
        (
            "n (float[1,3,4] x) => (float[1,3,4] y) { y = Tanh(x) }",
            "n (float[1,3,4] x) => (float[1,3,4] y) { y = Tanhh(x) }",
            "load a model that quantry wrote, got .*Tanhh",
        ),
    ],
    ids=["names", "dimensions", "rank", "unloadable"],
)
def test_a_quantized_model_that_does_not_fit_is_our_defect(float_text, quantized_text, message):
    with pytest.raises(InternalError, match=message):
        evaluate(*_arguments(HEAD + float_text, HEAD + quantized_text))


def test_a_float_model_that_does_not_load_is_a_model_error():
    with pytest.raises(ModelError, match="onnxruntime must be able to load"):
        evaluate(*_arguments(FLOAT.replace("Tanh", "Tanhh")))


LOOKUP = HEAD + "n (int64[2] x) => (float[2] y) <float[3] table = {1, 2, 3}> { y = Gather(table, x) }"


def test_a_sample_that_the_float_model_cannot_run_on_is_named():
    samples = [np.array([0, 1]), np.array([0, 3])]
    with pytest.raises(DataError, match=r"must be able to run on the inputs.*; float model, sample 1"):
        evaluate(*_arguments(LOOKUP, LOOKUP, samples))


def test_a_quantized_model_that_does_not_run_is_our_defect():
    shorter = LOOKUP.replace("float[3] table = {1, 2, 3}", "float[2] table = {1, 2}")
    with pytest.raises(
        InternalError, match=r"must run on every sample that the float model runs on.*; sample 1"
    ) as caught:
        evaluate(*_arguments(LOOKUP, shorter, [np.array([0, 1]), np.array([0, 2])]))
    assert isinstance(caught.value.__cause__, DataError)


def test_a_quantized_model_that_loads_only_without_optimisations_is_our_defect(monkeypatch):
    def refusing(source, **arguments):
        if b"QuantizeLinear" in source:
            raise ModelError("no such kernel")
        return deployment_session(source, **arguments)

    monkeypatch.setattr(stage, "deployment_session", refusing)
    with pytest.raises(InternalError, match="load a model that quantry wrote, got no such kernel"):
        evaluate(*_arguments(latency_runs=1))


def test_latency_is_measured_on_request():
    result = evaluate(*_arguments(latency_runs=7))
    assert result.latency.runs == 7
    assert result.latency.float_ms > 0
    assert evaluate(*_arguments()).latency is None


def test_result_is_the_same_again_but_for_the_times():
    results = [evaluate(*_arguments(latency_runs=3)) for _ in range(2)]
    assert fingerprint(results[0]) == fingerprint(results[1])


def test_result_is_reused_from_a_store(tmp_path):
    arguments, trace = _arguments(), Trace()
    fresh = Memo(DirectoryStore(tmp_path), trace, verify_inputs=True).run(evaluate, *arguments)
    again = Memo(DirectoryStore(tmp_path), trace).run(evaluate, *_arguments())
    assert (trace.computed("evaluate"), trace.reused("evaluate")) == (1, 1)
    assert again.value.metrics["sqnr"].value == fresh.value.metrics["sqnr"].value
    Memo(DirectoryStore(tmp_path), trace).run(evaluate, *_arguments(metrics=("l1",)))
    assert trace.computed("evaluate") == 2


def test_an_evaluation_with_times_is_not_taken_for_one_without(tmp_path):
    memo = Memo(DirectoryStore(tmp_path))
    without = memo.run(evaluate, *_arguments()).digest
    assert memo.run(evaluate, *_arguments(latency_runs=2)).digest != without
    reopened = Memo(DirectoryStore(tmp_path))
    assert reopened.run(evaluate, *_arguments(latency_runs=2)).value.latency.runs == 2
    assert reopened.run(evaluate, *_arguments()).value.latency is None


def test_key_names_onnxruntime_and_the_machine():
    environment = evaluate.environment({})
    assert environment["onnxruntime"] == onnxruntime.__version__
    assert environment["machine"]


def test_outputs_of_earlier_samples_are_let_go(monkeypatch):
    alive, most = [], []

    def watched(session, feeds, run=comparison.run_session):
        outputs = run(session, feeds)
        alive.extend(weakref.ref(output) for output in outputs.values())
        most.append(sum(reference() is not None for reference in alive))
        return outputs

    monkeypatch.setattr(comparison, "run_session", watched)
    evaluate(*_arguments(samples=SAMPLES * 6))
    # Three outputs of two models, of the sample at work and the one before it.
    assert max(most) <= 12


def test_no_bar_where_no_one_looks(capfd):
    evaluate(*_arguments())
    assert capfd.readouterr() == ("", "")


def test_a_bar_is_drawn_on_a_terminal(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    assert list(progress(range(3), "evaluate", 3)) == [0, 1, 2]
    assert "evaluate" in terminal.getvalue()
