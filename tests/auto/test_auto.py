"""`auto` finds a recipe without labels: it keeps what helps on held-out samples."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import onnxruntime
import pytest
from onnx import numpy_helper

import quantry
from quantry.auto import EFFORTS, AutoResult, Effort, find_effort
from quantry.data.open_data import calibration_data
from quantry.data.subset import spread_split
from quantry.diagnosis.fix import count_pieces, last_nodes
from quantry.errors import RecipeError
from quantry.evaluate.levels import HALF_BIT, is_as_good
from quantry.evaluate.paired import PairedCloseness, is_better
from quantry.evaluate.tasks import Closeness, FloatAgreement
from quantry.graph.float_model import InputSignature
from quantry.graph.load import model_source
from quantry.memo import MemoryStore
from quantry.recipe import Brecq, Distill, find_preset
from quantry.targets import check_model, find_target


def model_of(text: str, **weights: np.ndarray) -> onnx.ModelProto:
    model = onnx.parser.parse_model('<ir_version: 8, opset_import: ["": 17]> ' + text)
    model.graph.initializer.extend(
        numpy_helper.from_array(np.asarray(array, np.float32), name) for name, array in weights.items()
    )
    for number, node in enumerate(model.graph.node):
        node.name = f"{node.op_type}_{number}"
    return model


def pooled(classes: int = 32) -> onnx.ModelProto:
    """A classifier that ends in a pool, whose small results must use the range of its large inputs on an NPU."""
    rng = np.random.default_rng(0)
    text = f"""g (float[1,3,16,16] x) => (float[1,{classes},1,1] y)
    {{ a = Conv(x, w, b) r = Relu(a) y = GlobalAveragePool(r) }}"""
    return model_of(text, w=rng.standard_normal((classes, 3, 3, 3)), b=np.full(classes, -12.0))


def pictures(count: int, seed: int = 1) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    return [(3 * rng.standard_normal((1, 3, 16, 16))).astype(np.float32) for _ in range(count)]


def agreement(model: onnx.ModelProto, result: quantry.QuantizationResult, data: list[np.ndarray]) -> float:
    sessions = [
        onnxruntime.InferenceSession(one, providers=["CPUExecutionProvider"])
        for one in (model.SerializeToString(), result.to_bytes())
    ]
    ours, theirs = ([one.run(None, {"x": sample})[0].argmax() for sample in data] for one in sessions)
    return float(np.mean(np.equal(ours, theirs)))


@pytest.fixture(scope="module")
def found() -> AutoResult:
    """What `auto` finds if the recipe it starts with quantizes the pool; recommended-npu does not."""
    target = replace(find_target("vitisai"), recommended=("XINT8",))
    result = quantry.quantize(pooled(), pictures(32), target=target, store=MemoryStore())
    assert isinstance(result, AutoResult)
    return result


@pytest.fixture(scope="module")
def fixed() -> AutoResult:
    result = quantry.quantize(pooled(), pictures(32), target="vitisai", store=MemoryStore())
    assert isinstance(result, AutoResult)
    return result


def test_coarse_outputs_are_kept_in_float_where_that_helps(found: AutoResult, fixed: AutoResult) -> None:
    plain = quantry.quantize(pooled(), pictures(32), "XINT8", store=None)
    unseen = pictures(100, seed=2)
    before, after, recommended = (agreement(pooled(), result, unseen) for result in (plain, found, fixed))
    assert after > before + 0.1
    assert recommended > before + 0.1
    assert "GlobalAveragePool_2" in found.recipe.plan.selection.exclude
    gains = {step.label: step.gain for step in found.auto.steps if step.accepted}
    assert found.auto.kept
    assert max(gains[label] or 0.0 for label in found.auto.kept) > 0.5


def test_steps_and_what_further_gain_needs_are_reported(fixed: AutoResult, tmp_path: Path) -> None:
    labels = [step.label for step in fixed.auto.steps]
    assert labels[:2] == ["the recommended recipe, not tuned", "the plain preset"]
    assert len(set(labels)) == len(labels)
    assert all(step.compared_with in labels for step in fixed.auto.steps[1:])
    assert any("auto tried" in str(note) and "dB" in str(note) for note in fixed.notes)
    assert any("further gain would need" in str(note) for note in fixed.notes)
    page = quantry.write_report(fixed, tmp_path / "report.html", "m").read_text()
    assert "What auto tried" in page
    assert "GlobalAveragePool" in page


def test_target_rules_out_what_it_cannot_run(found: AutoResult, fixed: AutoResult) -> None:
    refused = dict(found.auto.refused)
    assert "align_pool" in next(reason for label, reason in refused.items() if "common range" in label)
    assert check_model(fixed.model, "vitisai") == ()
    # What it left in float is at the end, and the Relu that the NPU fuses with its layer is not part of it.
    assert check_model(found.model, "vitisai") == ()
    with pytest.raises(RecipeError, match="must suit the target vitisai"):
        quantry.quantize(pooled(), pictures(2), "A16W8", target="vitisai", store=None)


def test_result_is_the_same_again_and_not_worse_than_the_presets(fixed: AutoResult) -> None:
    again = quantry.quantize(pooled(), pictures(32), target="vitisai", store=None)
    assert again.to_bytes() == fixed.to_bytes()
    best = fixed.auto.closeness.mean_decibels
    assert all(step.decibels is None or best >= step.decibels - 0.5 for step in fixed.auto.steps[:2])


def test_second_run_reuses_every_stage_of_the_first() -> None:
    store = MemoryStore()
    first = quantry.quantize(pooled(8), pictures(8), target="vitisai", store=store, effort="low")
    again = quantry.quantize(pooled(8), pictures(8), target="vitisai", store=store, effort="low")
    assert all(entry.outcome == "reused" for entry in again.trace.entries if entry.stage in ("observe", "tune"))
    assert isinstance(first, AutoResult)
    assert isinstance(again, AutoResult)
    # Results in the store make trials fast; which ones run must not depend on that.
    assert [step.label for step in again.auto.steps] == [step.label for step in first.auto.steps]


TOKENS = """g (int64[batch, length] ids, int64[batch, length] mask) => (float[batch, length, 6] y, float[batch, 1] z)
{ e = Gather(table, ids) m = MatMul(e, w) y = Relu(m) p = ReduceMean<axes=[1], keepdims=0>(m) z = MatMul(p, v) }"""


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_samples_tokens_several_outputs_and_dynamic_shapes(count: int) -> None:
    rng = np.random.default_rng(3)
    weights = {
        "table": rng.standard_normal((20, 8)),
        "w": rng.standard_normal((8, 6)),
        "v": rng.standard_normal((6, 1)),
    }
    model = model_of(TOKENS, **weights)
    data = [
        {"ids": rng.integers(0, 20, (1, length)), "mask": np.ones((1, length), np.int64)}
        for length in range(3, 3 + count)
    ]
    result = quantry.quantize(model, data, effort="low", store=None)
    assert isinstance(result, AutoResult)
    assert result.auto.compared == count
    assert result.auto.is_swapped == (count > 1)
    assert count > 1 or not result.recipe.tune.steps
    assert result.evaluation.samples == count


def test_without_data_the_plain_preset_is_used() -> None:
    with pytest.warns(UserWarning, match="random"):
        result = quantry.quantize(pooled(4), store=None)
    assert not isinstance(result, AutoResult)
    assert result.recipe.plan == find_preset("CPU_INT8").recipe.plan
    assert any("auto needs calibration data" in str(note) for note in result.notes)


def test_options_are_checked() -> None:
    with pytest.raises(RecipeError, match="did you mean 'high'"):
        find_effort("hihg")
    with pytest.raises(RecipeError, match="--target must be one of"):
        quantry.quantize(pooled(4), pictures(1), target="vitis", store=None)
    with pytest.raises(RecipeError, match="effort must come with the recipe 'auto'"):
        quantry.quantize(pooled(4), pictures(1), "XINT8", effort="high", store=None)
    with pytest.raises(RecipeError, match="score must come with a recipe"):
        quantry.quantize(pooled(4), pictures(1), score=lambda outputs: 0.0, store=None)
    assert EFFORTS["low"].seconds < EFFORTS["default"].seconds < EFFORTS["high"].seconds


def test_every_target_has_a_recipe_to_begin_with() -> None:
    for name in ("tensorrt", "qnn-htp", "openvino-cpu"):
        result = quantry.quantize(pooled(4), pictures(4), target=name, effort="low", store=None)
        assert not find_target(name).conflicts(result.recipe)


def closeness(decibels: np.ndarray, agreed: np.ndarray | None = None) -> Closeness:
    unknown = np.full(len(decibels), np.nan)
    return Closeness(decibels, unknown if agreed is None else agreed, unknown)


def test_gain_is_supported_as_the_signed_rank_test_says() -> None:
    stats = pytest.importorskip("scipy.stats")
    rng = np.random.default_rng(4)
    for shift in (-0.3, 0.0, 0.2, 0.4, 0.8):
        for count in (8, 16, 40):
            before = rng.standard_normal(count) * 3 + 20
            after = before + shift + rng.standard_t(3, count)
            test = stats.wilcoxon(after - before, alternative="greater", method="asymptotic", correction=True)
            expected = test.pvalue < 0.05 and (after - before).mean() > 0
            assert is_better(after, before) == expected


def test_gain_that_loses_decisions_is_not_supported() -> None:
    before, after = np.full(20, 20.0), np.full(20, 21.0)
    assert is_better(after, before)
    assert not PairedCloseness(closeness(after, np.zeros(20)), closeness(before, np.ones(20))).is_better()
    small = PairedCloseness(closeness(before + 0.3, np.ones(20)), closeness(before, np.ones(20)))
    assert small.is_better()
    assert not small.is_better(is_cheap=False)
    assert not PairedCloseness(closeness(before[:1] + 0.5), closeness(before[:1])).is_better()
    assert is_as_good(Closeness(before, np.ones(20), np.zeros(20)))
    assert not is_as_good(Closeness(before, np.ones(20), np.full(20, 0.1)))
    # A map, such as a detector's output, has no ties; its boxes must be precise as well.
    assert not is_as_good(closeness(before, np.ones(20)))
    assert is_as_good(closeness(before + 20, np.ones(20)))
    assert not is_as_good(closeness(before))


@pytest.mark.parametrize(
    ("size", "expected"), [(1, (1, 1)), (2, (1, 1)), (7, (4, 3)), (100, (32, 64)), (500, (32, 64))]
)
def test_samples_are_split_evenly_and_never_used_twice(size: int, expected: tuple[int, int]) -> None:
    signature = (InputSignature("x", np.dtype(np.float32), ("N", 1)),)
    data = calibration_data(np.arange(size, dtype=np.float32)[:, None], signature)
    fit, held_out = spread_split(data, 32, 64)
    seen = [[int(sample["x"].item()) for sample in part] for part in (fit, held_out)]
    assert (len(seen[0]), len(seen[1])) == expected == (fit.size, held_out.size)
    assert size == 1 or not set(seen[0]) & set(seen[1])
    assert max(seen[1]) >= size * 0.9 - 1


def test_final_model_is_quantized_with_the_recipe_that_was_chosen(fixed: AutoResult) -> None:
    assert replace(fixed.recipe, name="") == replace(fixed.auto.recipe, name="")


def test_training_is_tried_with_high_effort_and_dropped_where_it_does_not_pay() -> None:
    pytest.importorskip("torch")
    result = quantry.quantize(pooled(4), pictures(8), target="vitisai", effort="high", store=None)
    assert isinstance(result, AutoResult)
    trained = [step for step in result.auto.steps if step.label in ("block reconstruction", "distillation")]
    assert len(trained) == 2
    assert all(step.gain is not None and step.accepted == (step.label in _kept(result)) for step in trained)
    assert result.auto.closeness.mean_decibels >= result.auto.start.mean_decibels


def _kept(result: AutoResult) -> set[str]:
    names = {"Brecq": "block reconstruction", "Distill": "distillation"}
    return {names[type(step).__name__] for step in result.recipe.tune.steps if type(step).__name__ in names}


def test_evaluations_come_from_the_store_in_a_second_run(monkeypatch: pytest.MonkeyPatch) -> None:
    store = MemoryStore()
    first = quantry.quantize(pooled(8), pictures(18), target="vitisai", store=store, effort="low")
    runs = []
    original = FloatAgreement.pairs
    monkeypatch.setattr(FloatAgreement, "pairs", lambda *given: runs.append(given) or original(*given))
    again = quantry.quantize(pooled(8), pictures(18), target="vitisai", store=store, effort="low")
    assert isinstance(first, AutoResult)
    assert isinstance(again, AutoResult)
    assert not runs
    assert [step.decibels for step in again.auto.steps] == [step.decibels for step in first.auto.steps]


def chain() -> onnx.ModelProto:
    """A pool between two layers, so that it cuts the graph in two if it is float."""
    rng = np.random.default_rng(0)
    text = """g (float[1,3,16,16] x) => (float[1,8,1,1] y)
    { a = Conv(x, w) r = Relu(a) p = AveragePool<kernel_shape=[2, 2], strides=[2, 2]>(r)
      c = Conv(p, v) s = Relu(c) y = GlobalAveragePool(s) }"""
    return model_of(text, w=rng.standard_normal((8, 3, 3, 3)), v=rng.standard_normal((8, 8, 3, 3)))


@pytest.mark.parametrize(("decibels", "is_loss"), [(-0.1, True), (1.0, True), (3.5, False)])
def test_fewer_equal_decisions_are_a_loss_unless_half_a_bit_is_gained(decibels: float, is_loss: bool) -> None:
    plain = closeness(np.full(20, 20.0), np.ones(20))
    better = closeness(np.full(20, 20.0 + decibels), np.full(20, 0.99))
    assert PairedCloseness(better, plain).is_worse == is_loss


def test_float_node_in_the_middle_must_make_up_for_cutting_the_graph() -> None:
    model = model_source(chain()).load()
    names = {str(node.name) for node in model.graph}
    assert count_pieces(model, names) == 1
    assert count_pieces(model, names - {"AveragePool_2"}) == 2
    assert count_pieces(model, names - {"GlobalAveragePool_5"}) == 1
    assert count_pieces(model, names - {"Conv_0", "Relu_1"}) == 1
    base = closeness(np.full(20, 20.0))
    better = PairedCloseness(closeness(np.full(20, 22.0)), base)
    assert better.is_better(is_cheap=False)
    assert not better.is_better(is_cheap=False, split=HALF_BIT)
    assert PairedCloseness(closeness(np.full(20, 24.0)), base).is_better(is_cheap=False, split=HALF_BIT)
    assert find_target("vitisai").float_elsewhere
    assert not find_target("ort-cpu").float_elsewhere


def test_last_layers_include_the_function_that_is_fused_with_them() -> None:
    result = quantry.quantize(chain(), pictures(2), "CPU_INT8", store=None)
    after, layers = last_nodes(result.stages.equalized.value.model, result.plan)
    assert after == ("GlobalAveragePool_5",)
    assert layers == ("Conv_3", "Relu_4")


def test_plain_preset_wins_if_everything_else_is_worse_on_average() -> None:
    """Tuning on few samples of a wide matrix fits them alone."""
    rng = np.random.default_rng(5)
    model = model_of(
        "g (float[1,128] x) => (float[1,16] y) { h = MatMul(x, w) r = Relu(h) y = MatMul(r, v) }",
        w=rng.standard_normal((128, 128)) / 11,
        v=rng.standard_normal((128, 16)) / 11,
    )
    data, unseen = ([rng.standard_normal((1, 128)).astype(np.float32) for _ in range(count)] for count in (4, 40))
    plain, best = (quantry.quantize(model, data, recipe, store=None) for recipe in ("CPU_INT8", None))
    reference = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    errors = []
    for result in (plain, best):
        session = onnxruntime.InferenceSession(result.to_bytes(), providers=["CPUExecutionProvider"])
        errors.append(
            np.mean(
                [
                    np.square(session.run(None, {"x": one})[0] - reference.run(None, {"x": one})[0]).sum()
                    for one in unseen
                ]
            )
        )
    assert errors[1] <= 1.05 * errors[0]


def test_pixel_options_are_those_of_the_evaluation_images_too(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(6)
    for folder in ("calib", "images"):
        (tmp_path / folder).mkdir()
        for index in range(3):
            pixels = rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)
            image.fromarray(pixels).save(tmp_path / folder / f"{index}.png")
    options = quantry.ImageOptions(scale=1 / 255)
    result = quantry.quantize(
        pooled(4),
        tmp_path / "calib",
        images=options,
        evaluation_data=tmp_path / "images",
        effort="low",
        store=None,
    )
    assert max(float(sample["x"].max()) for sample in result.evaluation_data) <= 1.0


def test_training_that_does_not_fit_into_the_time_is_skipped_and_named() -> None:
    pytest.importorskip("torch")
    short = Effort("high", 0.01, 8, 8, trained=True)
    result = quantry.quantize(pooled(4), pictures(16), target="vitisai", effort=short, store=None)
    assert isinstance(result, AutoResult)
    assert {"block reconstruction", "distillation"} <= set(result.auto.skipped)
    assert not any(isinstance(step, Brecq | Distill) for step in result.recipe.tune.steps)


def test_the_figure_of_the_result_comes_from_samples_that_chose_nothing() -> None:
    result = quantry.quantize(pooled(8), pictures(64), target="vitisai", store=None, effort="low")
    assert isinstance(result, AutoResult)
    assert result.auto.reported is not None
    # A quarter of the samples; the others calibrate the written model.
    assert len(result.auto.reported.decibels) == result.evaluation_data.size == 16
    assert result.calibration_data is not None
    assert result.calibration_data.size == 48
    assert any("16 samples that neither calibrated nor chose it" in str(note) for note in result.notes)
    few = quantry.quantize(pooled(8), pictures(12), target="vitisai", store=None, effort="low")
    assert isinstance(few, AutoResult)
    assert few.auto.reported is None
