import inspect
import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest

from observe_oracle import CPU, assert_closely, assert_exactly, exposed, float_model
from quantry.data.open_data import calibration_data
from quantry.errors import DataError, RecipeError, SelectionError
from quantry.graph import segments
from quantry.graph.float_model import FloatModel
from quantry.memo import Memo, MemoryStore, Trace, fingerprint
from quantry.observe import Needs, Statistics, observe
from quantry.observe.lineage import trace_lineage
from quantry.pipeline import calibration_samples
from quantry.recipe import ObserveOptions, Recipe
from quantry.runtime import progress as progress_module
from quantry.runtime import sessions

OPTIONS = ObserveOptions()
RANDOM = np.random.default_rng(11)
WEIGHTS = {
    "w": (RANDOM.standard_normal((8, 3, 3, 3)) / 3).astype(np.float32),
    "v": (RANDOM.standard_normal((8, 8, 1, 1)) / 2).astype(np.float32),
    "b": RANDOM.standard_normal(8).astype(np.float32),
    "s": np.float32([1, 1, 2, 2]),
}
# A miniature of a detector: SiLU, residual, pooling, resizing, concatenation, a clipped head.
DETECTOR = """g (float[1,3,16,16] x) => (float[n,m] y) {
    c1 = Conv<pads = [1,1,1,1], strides = [2,2]>(x, w, b)
    s1 = Sigmoid(c1)
    a1 = Mul(c1, s1)
    c2 = Conv(a1, v)
    r2 = Relu(c2)
    sum = Add(r2, a1)
    pool = MaxPool<kernel_shape = [2,2], strides = [2,2]>(sum)
    up = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">(pool, , s)
    cat = Concat<axis = 1>(up, a1)
    h = HardSwish(cat)
    t = Transpose<perm = [0,2,3,1]>(h)
    y = Flatten(t)
}"""


def detector():
    return float_model(DETECTOR, **WEIGHTS)


def images(count, scale=1.0):
    return [{"x": (RANDOM.standard_normal((1, 3, 16, 16)) * scale).astype(np.float32)} for _ in range(count)]


def observed(model, samples, **keywords):
    return observe(model, calibration_data(samples, model.inputs), OPTIONS, **keywords)


def test_every_float_tensor_has_the_statistics_of_its_values():
    model, samples = detector(), images(5)
    statistics = observed(model, samples)
    oracle = exposed(model, samples)
    assert statistics.samples == 5
    assert set(statistics.tensors) == set(oracle[0])
    for name in oracle[0]:
        assert_closely(statistics.tensors[name], [values[name] for values in oracle], name)


def test_values_that_are_read_out_are_counted_exactly():
    model = float_model("g (float[2,50] x) => (float[2,50] y) { a = Softmax(x) y = Relu(x) }")
    samples = [{"x": RANDOM.standard_normal((2, 50)).astype(np.float32)} for _ in range(3)]
    statistics = observed(model, samples)
    assert_exactly(statistics.tensors["x"], [sample["x"] for sample in samples])
    assert_exactly(statistics.tensors["a"], [values["a"] for values in exposed(model, samples)])


def test_order_of_tensors_is_inputs_then_nodes():
    assert list(observed(detector(), images(1)).tensors)[:4] == ["x", "c1", "s1", "a1"]


@pytest.mark.parametrize("segment_bytes", [1, 4000])
def test_segments_do_not_change_the_statistics(segment_bytes, monkeypatch):
    model, samples = detector(), images(3)
    whole = observed(model, samples)
    monkeypatch.setattr(segments, "SEGMENT_BYTES", segment_bytes)
    assert fingerprint(observed(model, samples)) == fingerprint(whole)


def test_result_is_the_same_each_time_and_after_its_blob():
    model, samples = detector(), images(2)
    first, second = observed(model, samples), observed(model, samples)
    assert fingerprint(first) == fingerprint(second)
    stored = Statistics.from_blob(first.to_blob())
    assert list(stored.tensors) == list(first.tensors)
    for name, stats in first.tensors.items():
        np.testing.assert_array_equal(stored.tensors[name].codes, stats.codes)
        np.testing.assert_array_equal(stored.tensors[name].counts, stats.counts)
        np.testing.assert_array_equal(stored.tensors[name].batch_minima, stats.batch_minima)
        assert stored.tensors[name].maximum == stats.maximum


def test_samples_option_limits_the_pass():
    model, samples = detector(), images(4)
    recipe = Recipe(observe=ObserveOptions(samples=2))
    limited = calibration_samples(calibration_data(samples, model.inputs), recipe)
    assert fingerprint(observe(model, limited, recipe.observe)) == fingerprint(observed(model, samples[:2]))


def test_memo_runs_the_model_once_for_equal_content():
    model, samples = detector(), images(2)
    memo = Memo(MemoryStore(), Trace())
    first = memo.run(observe, model, calibration_data(samples, model.inputs), OPTIONS)
    again = memo.run(observe, model, calibration_data(iter(samples), model.inputs), OPTIONS)
    assert first.digest == again.digest
    assert (memo.trace.computed("observe"), memo.trace.reused("observe")) == (1, 1)


def test_channel_extrema_are_exact_for_observed_and_derived_tensors():
    model, samples = detector(), images(3)
    statistics = observed(model, samples, needs=Needs((("c1", 1), ("h", -3), ("x", 1))))
    oracle = exposed(model, samples)
    for name in ("c1", "h", "x"):
        values = np.concatenate([each[name] for each in oracle])
        np.testing.assert_allclose(statistics.tensors[name].channels.minima, values.min((0, 2, 3)), rtol=1e-5)
        np.testing.assert_allclose(statistics.tensors[name].channels.maxima, values.max((0, 2, 3)), rtol=1e-5)
    assert statistics.tensors["cat"].channels is None


def test_need_of_an_unknown_tensor_raises_with_the_nearest_name():
    with pytest.raises(SelectionError, match="did you mean 'pool'"):
        observed(detector(), images(1), needs=Needs((("pol", 1),)))


def test_nan_and_infinity_are_counted_in_every_tensor():
    model = float_model(
        "g (float[1,6] x) => (float[1,k] y) { l = Log(x) r = Relu(l) n = Neg(l) y = Concat<axis = 1>(r, n) }"
    )
    samples = [{"x": np.array([[1, 2, 0, -1, 3, -2]], np.float32)}, {"x": np.ones((1, 6), np.float32)}]
    statistics = observed(model, samples)
    oracle = exposed(model, samples)
    for name in oracle[0]:
        assert_exactly(statistics.tensors[name], [values[name] for values in oracle])
    assert (statistics.tensors["l"].nan_count, statistics.tensors["l"].inf_count) == (2, 1)


def test_overflow_in_a_function_of_a_tensor_is_counted():
    model = float_model("g (float[1,4] x) => (float[1,4] y) { e = Exp(x) y = Relu(e) }")
    samples = [{"x": np.array([[0, 1, 2, 100]], np.float32)}]
    statistics = observed(model, samples)
    assert statistics.tensors["e"].inf_count == 1
    assert statistics.tensors["e"].maximum == pytest.approx(np.exp(2), rel=1e-6)


def test_dynamic_axes_and_changing_batches():
    model = float_model(
        "g (float[n,3,h,w] x) => (float[n,8,i,j] y) { c = Conv<pads = [1,1,1,1]>(x, w0) s = Sigmoid(c) y = Mul(c, s) }",
        w0=WEIGHTS["w"],
    )
    samples = [{"x": RANDOM.standard_normal(shape).astype(np.float32)} for shape in ((1, 3, 8, 8), (2, 3, 5, 9))]
    statistics = observed(model, samples)
    oracle = exposed(model, samples)
    for name in oracle[0]:
        assert_closely(statistics.tensors[name], [values[name] for values in oracle], name)


def test_empty_tensors_are_counted_as_nothing():
    model = float_model(
        "g (float[1,6] x) => (float[k] y) { b = Cast<to = 9>(x) i = NonZero(b) t = Transpose(i) v = GatherND(x, t) "
        "y = Relu(v) }"
    )
    statistics = observed(model, [{"x": np.zeros((1, 6), np.float32)}])
    assert (statistics.tensors["v"].count, statistics.tensors["y"].count) == (0, 0)
    assert statistics.tensors["y"].distribution().total == 0


def test_integer_inputs_and_tensors_are_skipped():
    model = float_model(
        "g (int64[1,4] ids) => (float[1,4,3] y) { e = Gather(table, ids) y = Relu(e) }",
        table=RANDOM.standard_normal((10, 3)).astype(np.float32),
    )
    statistics = observed(model, [{"ids": np.array([[1, 2, 3, 9]])}])
    assert list(statistics.tensors) == ["e", "y"]


def test_model_without_a_float_tensor_to_show_gives_its_input():
    model = float_model("g (float[1,4] x) => (int64[1] y) { y = ArgMax<axis = 1, keepdims = 0>(x) }")
    assert list(observed(model, [np.ones((1, 4), np.float32)]).tensors) == ["x"]


def test_tensors_of_contributed_operators_are_observed():
    model = float_model("g (float[1,4] x) => (float[1,4] y) { m = Neg(x) y = Relu(m) }")
    node = model.model.graph.node(0)
    node.domain, node.op_type = "com.microsoft", "Gelu"
    node.outputs[0].type = node.outputs[0].shape = None
    model.model.opset_imports["com.microsoft"] = 1
    statistics = observed(model, [np.array([[-1, 0, 1, 2]], np.float32)])
    assert set(statistics.tensors) == {"x", "m", "y"}


def test_subgraphs_see_tensors_of_the_main_graph():
    branch = "float[1,4] o"
    model = float_model(
        f"g (float[1,4] x, bool c) => (float[1,4] y) {{ a = Relu(x) y = If (c) <then_branch = t () => ({branch}) "
        f"{{ o = Neg(a) }}, else_branch = e () => ({branch}) {{ o = Exp(a) }}> }}"
    )
    statistics = observed(model, [{"x": np.array([[-1, 0, 1, 2]], np.float32), "c": np.ones((), bool)}])
    assert statistics.tensors["y"].minimum == -2


def test_failing_inference_names_the_sample():
    model = float_model(
        "g (float[4] x, int64[1] i) => (float[1] y) { r = Relu(x) y = Gather(r, i) }",
    )
    samples = [{"x": np.ones(4, np.float32), "i": np.array([k])} for k in (0, 9)]
    with pytest.raises(DataError, match=r"out of .*bounds.*sample 1"):
        observed(model, samples)


def test_bad_sample_in_the_middle_names_the_sample():
    model, samples = detector(), images(3)
    samples[2] = {"x": np.zeros((1, 3, 16, 17), np.float32)}
    with pytest.raises(DataError, match="sample 2"):
        observed(model, samples)


def test_error_of_the_users_own_reader_comes_through():
    def reader():
        yield from images(2)
        raise ZeroDivisionError("in the reader")

    model = detector()
    data = calibration_data(reader(), model.inputs)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="in the reader"):
            observe(model, data, OPTIONS)


def test_unknown_provider_raises():
    model = detector()
    with pytest.raises(RecipeError, match="NoSuchProvider"):
        observe(model, calibration_data(images(1), model.inputs), ObserveOptions(providers=("NoSuchProvider",)))


def test_large_weights_pass_through_a_temporary_folder_that_is_removed(monkeypatch, tmp_path):
    monkeypatch.setattr(sessions, "INLINE_LIMIT_BYTES", 0)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    model, samples = detector(), images(2)
    statistics = observed(model, samples)
    assert list(tmp_path.iterdir()) == []
    assert_closely(statistics.tensors["y"], [values["y"] for values in exposed(model, samples)])


def test_model_is_left_as_it_was():
    model = detector()
    before = ir.to_proto(model.model).SerializeToString(deterministic=True)
    observed(model, images(1))
    assert ir.to_proto(model.model).SerializeToString(deterministic=True) == before


def test_stopping_early_ends_the_inference_thread(monkeypatch):
    class StoppedError(Exception):
        pass

    def stop(items, *_):
        next(iter(items))
        raise StoppedError

    monkeypatch.setattr("quantry.observe.stage.progress", stop)
    with pytest.raises(StoppedError):
        observed(detector(), images(50))
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("quantry")]


def test_interrupt_stops_promptly_and_leaves_nothing_after(tmp_path):
    script = tmp_path / "endless.py"
    script.write_text(
        textwrap.dedent(f"""
        import itertools, sys
        sys.path[:0] = [{str(Path(__file__).parent)!r}, {str(Path(__file__).parents[1])!r}]
        from test_observe_stage import detector, images
        from quantry.data import calibration_data
        from quantry.observe import observe
        from quantry.recipe import ObserveOptions
        def endless():
            for index in itertools.count():
                if index == 3:
                    print("running", flush=True)
                yield images(1)[0]
        model = detector()
        observe(model, calibration_data(endless(), model.inputs), ObserveOptions())
        """)
    )
    folder = tmp_path / "tmp"
    folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(folder)}
    process = subprocess.Popen(
        [sys.executable, script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    )
    assert process.stdout.readline() == b"running\n"
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    _, errors = process.communicate(timeout=20)
    assert time.monotonic() - started < 10
    assert b"KeyboardInterrupt" in errors
    assert list(folder.glob("*quantry*")) == []


def test_progress_is_shown_on_a_terminal_only(monkeypatch, capsys):
    assert list(progress_module.progress(range(3), "observing", 3)) == [0, 1, 2]
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(progress_module, "on_terminal", lambda: True)
    monkeypatch.setenv("FORCE_COLOR", "1")
    assert list(progress_module.progress(range(3), "observing", None)) == [0, 1, 2]
    assert "observing" in capsys.readouterr().err


def test_observation_holds_two_segments_of_buffers_whatever_the_number_of_samples(monkeypatch):
    monkeypatch.setattr(segments, "SEGMENT_BYTES", 1 << 18)
    body = "".join(f"t{i} = Softmax(t{i - 1}) " for i in range(1, 25)).replace("t0", "x")
    model = float_model(f"g (float[1,16,64,64] x) => (float[1,16,64,64] y) {{ {body} y = Neg(t24) }}")
    sample = {"x": np.ones((1, 16, 64, 64), np.float32)}

    import tracemalloc

    def peak(count):
        data = calibration_data([sample] * count, model.inputs)
        tracemalloc.start()
        observe(model, data, OPTIONS)
        _, highest = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        return highest

    few, many = peak(2), peak(8)
    assert many < few + (1 << 18)
    assert few < 12 * (1 << 18)


def test_stage_declares_what_its_result_depends_on():
    assert observe.name == "observe"
    assert set(observe.environment({"options": ObserveOptions()})) == {"onnxruntime", "numpy", "kernels", "devices"}
    assert list(inspect.signature(observe.function).parameters) == ["model", "data", "options", "needs"]


def test_few_tensors_of_the_detector_are_read_out():
    lineage = trace_lineage(detector().model)
    assert {term.root for terms in lineage.values() for term in terms} == {"x", "c1", "c2", "sum", "pool"}
    assert OPTIONS.providers == CPU


def test_weights_in_external_files_are_read(tmp_path):
    model, samples = detector(), images(1)
    ir.save(model.model, tmp_path / "model.onnx", external_data="weights.bin")
    external = FloatModel(ir.load(tmp_path / "model.onnx"))
    assert any(isinstance(v.const_value, ir.ExternalTensor) for v in external.model.graph.initializers.values())
    assert fingerprint(observed(external, samples)) == fingerprint(observed(model, samples))
