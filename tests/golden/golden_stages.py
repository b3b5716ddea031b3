"""Every stage on fixed inputs, and the digest of its result.

Digests must be the same on every processor. The models' numbers are chosen so that all sums are exact
(golden_models.py). Tuning trains with numbers that are not, so the golden form of a tuned result has the integers of
weights and biases instead of the floats they are rounded from.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

from golden_models import EXACT, MODELS, conv, looping, residual, rough, samples, uneven

import quantry
from quantry.data.calibration_data import CalibrationData
from quantry.data.open_data import calibration_data
from quantry.data.sample_cache import SampleCache
from quantry.emit import emit, place_bodies
from quantry.equalize import (
    WeightActivationTypes,
    equalize,
    equalize_jointly,
    fit_powers,
    group_channels,
    joint_needs,
    rotate,
    smooth,
    smooth_needs,
)
from quantry.evaluate import evaluate, guard
from quantry.evaluate.arithmetic import EXACT as EXACTLY
from quantry.evaluate.tasks.float_agreement import Closeness, FloatAgreement, ModelFile, closeness
from quantry.graph.bodies import BodyPlace
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.graph.quant_plan import QuantPlan
from quantry.graph.quantized_model import QuantizedModel
from quantry.graph.save import write_model
from quantry.memo import Digest, Stage, fingerprint
from quantry.mix import MixRequest, candidates, mix, sensitivity, target_options
from quantry.numerics.rounding import quantize_array
from quantry.numerics.tensor_params import QuantParams
from quantry.observe import Statistics, body_as_model, body_calls, observe
from quantry.plan import plan
from quantry.prepare import convert, prepare
from quantry.recipe import (
    PRESETS,
    AdaQuant,
    AdaRound,
    BiasCorrection,
    Brecq,
    ChannelGroups,
    CrossLayer,
    DataType,
    Distill,
    EmitOptions,
    Entropy,
    EqualizeOptions,
    EvaluateOptions,
    FitPowers,
    Gptq,
    JointEqualization,
    LayerCount,
    LayerTarget,
    LayerWisePercentile,
    Method,
    MinMax,
    MinMSE,
    MixedPrecision,
    NonOverflow,
    NpuConversions,
    ObserveOptions,
    OwnBias,
    Percentile,
    PlanOptions,
    PowerOfTwoScale,
    PrepareOptions,
    Rotation,
    ScaleOptions,
    Selection,
    SmoothQuant,
    TensorSpec,
    Tqt,
    TuneStep,
)
from quantry.scale import scale
from quantry.tune import Tuned, tune, tuned_model, tuned_params

FILE = Path(__file__).with_name("stages.txt")
HEADING = "# stage, version, case, digest of the result; written by regenerate.py\n"
SOURCE = Path(quantry.__file__).parent


def all_stages() -> dict[str, Stage[..., object]]:
    """Return every stage of the package by name."""
    # Only modules with the decorator are imported: importing the whole package would import torch, which takes seconds.
    files = (path for path in SOURCE.rglob("*.py") if "\n@stage(" in path.read_text(encoding="utf-8"))
    names = (".".join(("quantry", *path.relative_to(SOURCE).with_suffix("").parts)) for path in files)
    values = (value for name in names for value in vars(import_module(name)).values())
    return {value.name: value for value in values if isinstance(value, Stage)}


STAGES = all_stages()
PLANS = {name: PRESETS[name].recipe.plan for name in ("XINT8", "S8S8_AAWS", "CPU_INT8", "A16W8")}
METHODS: dict[str, Method] = {
    "MinMax": MinMax(),
    "MinMax-average": MinMax(moving_average=0.5),
    "Percentile": Percentile(90.0),
    "Entropy": Entropy(),
    "MinMSE": MinMSE(),
    "NonOverflow": NonOverflow(),
    "LayerWisePercentile": LayerWisePercentile((80.0, 95.0)),
}
TUNE_STEPS: tuple[TuneStep, ...] = (
    BiasCorrection(),
    Gptq(),
    AdaRound(iterations=60),
    AdaQuant(iterations=20, learning_rate=0.01),
    Brecq(iterations=100, learning_rate=0.003, layers=1),
    Tqt(iterations=40, learning_rate=0.01, scale_learning_rate=0.05),
    Distill(iterations=100, learning_rate=0.003),
)
"""Short runs of every algorithm, with learning rates that change some integers."""
NEEDS_TORCH = (Brecq, Tqt, Distill)


@dataclass(frozen=True)
class Golden:
    """One line of the file."""

    stage: str
    version: int
    case: str
    digest: str


def write_golden(entries: list[Golden]) -> None:
    """Write the file."""
    lines = [f"{entry.stage} {entry.version} {entry.case} {entry.digest}\n" for entry in entries]
    FILE.write_text(HEADING + "".join(lines), encoding="utf-8")


def read_golden() -> list[Golden]:
    """Read the file, without the cases that need torch if it is not installed; empty if there is no file."""
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []
    parts = [line.split() for line in lines if line and not line.startswith("#")]
    entries = [Golden(stage, int(version), case, digest) for stage, version, case, digest in parts]
    skipped = () if find_spec("torch") else tuple(f"-{step.__name__}" for step in NEEDS_TORCH)
    return [entry for entry in entries if not entry.case.endswith(skipped)]


def current() -> list[Golden]:
    """Run all stages and return what the file should contain."""
    return [Golden(stage, STAGES[stage].version, case, digest) for stage, case, digest in _digests()]


def moved(kept: list[Golden], now: list[Golden]) -> list[str]:
    """Return a sentence for each stage whose output changed while its version did not."""
    before = {(entry.stage, entry.case): entry for entry in kept}
    cases: dict[str, list[str]] = {}
    for entry in now:
        old = before.get((entry.stage, entry.case))
        if old is not None and old.version == entry.version and old.digest != entry.digest:
            cases.setdefault(entry.stage, []).append(entry.case)
    return [
        f"the output of stage {stage} moved ({', '.join(names)}): bump its version in @stage(...) and regenerate with "
        "`python tests/golden/regenerate.py`"
        for stage, names in cases.items()
    ]


def outdated(kept: list[Golden], now: list[Golden]) -> list[str]:
    """Return a sentence for each stage whose version or cases differ from the file."""
    differing = {(entry.stage, entry.version, entry.case) for entry in kept} ^ {
        (entry.stage, entry.version, entry.case) for entry in now
    }
    return [
        f"stage {stage} has another version or other cases than {FILE.name}: regenerate with "
        "`python tests/golden/regenerate.py`"
        for stage in sorted({stage for stage, _, _ in differing})
    ]


@cache
def _prepared(name: str) -> FloatModel:
    return prepare(model_source(MODELS[name]()), PrepareOptions())


def _data(name: str) -> CalibrationData:
    return calibration_data(samples(MODELS[name]()), _prepared(name).inputs)


@cache
def _statistics(name: str) -> Statistics:
    return observe(_prepared(name), _data(name), ObserveOptions())


@cache
def _plan(name: str, preset: str) -> QuantPlan:
    return plan(_prepared(name), PLANS[preset])


def _digests() -> Iterator[tuple[str, str, Digest]]:
    for name in MODELS:
        yield "prepare", name, fingerprint(_prepared(name))
    kept = prepare(model_source(conv()), PrepareOptions(fold_batch_norm=False, opset=21))
    yield "prepare", "conv-kept", fingerprint(kept)
    for name in MODELS:
        yield "convert", name, fingerprint(convert(_prepared(name), NpuConversions()))
    yield "smooth", "conv", fingerprint(_smoothed())
    yield "equalize", "conv", fingerprint(equalize(_prepared("conv"), EqualizeOptions(CrossLayer())))
    yield from _rewrite_digests()
    for name in EXACT:
        yield "observe", name, fingerprint(_statistics(name))
    yield "observe", "conv-one", fingerprint(observe(_prepared("conv"), _data("conv").take(1), ObserveOptions()))
    for name in MODELS:
        for preset in PLANS:
            yield "plan", f"{name}-{preset}", fingerprint(_plan(name, preset))
    partly = PlanOptions(selection=Selection(exclude=("conv",)))
    yield "plan", "conv-partly", fingerprint(plan(_prepared("conv"), partly))
    yield from _scale_digests()
    yield from _mix_digests()
    yield from _tune_digests()
    yield from _emit_digests()
    yield from _body_digests()
    yield from _evaluate_digests()


def _scale_digests() -> Iterator[tuple[str, str, Digest]]:
    for name in EXACT:
        for preset in ("XINT8", "CPU_INT8"):
            for method, options in METHODS.items():
                weight = MinMax() if isinstance(options, MinMax) else options
                params = scale(
                    _prepared(name), _statistics(name), _plan(name, preset), ScaleOptions(options, weight=weight)
                )
                yield "scale", f"{name}-{preset}-{method}", fingerprint(params)


def _smoothed() -> FloatModel:
    options = SmoothQuant(alpha=0.5)
    seen = observe(_prepared("conv"), _data("conv"), ObserveOptions(), smooth_needs(_prepared("conv"), options))
    return smooth(_prepared("conv"), seen, options, WeightActivationTypes(TensorSpec(), TensorSpec()))


def _rewrite_digests() -> Iterator[tuple[str, str, Digest]]:
    model = prepare(model_source(uneven()), PrepareOptions())
    data = calibration_data(samples(uneven()), model.inputs)
    seen = observe(model, data, ObserveOptions())
    grouping = ChannelGroups(gain=1.5, tolerance=0.0)
    yield "group_channels", "uneven", fingerprint(group_channels(model, grouping, TensorSpec()))
    powers = TensorSpec(scale=PowerOfTwoScale())
    types = WeightActivationTypes(powers, powers, OwnBias(powers))
    yield "fit_powers", "uneven", fingerprint(fit_powers(model, seen, FitPowers(), types))
    # Samples of different strength, so that it matters which one a peak comes from.
    uneven_samples = [
        {name: values * (1 + 3 * at) for name, values in sample.items()} for at, sample in enumerate(samples(uneven()))
    ]
    differing = calibration_data(uneven_samples, model.inputs)
    channels = observe(model, differing, ObserveOptions(), joint_needs(model, types))
    yield "joint", "uneven", fingerprint(equalize_jointly(model, channels, JointEqualization(), types))
    yield "rotate", "residual", fingerprint(rotate(prepare(model_source(residual()), PrepareOptions()), Rotation()))


def _mix_digests() -> Iterator[tuple[str, str, Digest]]:
    # Scales that are powers of two keep every rounding error, and so the sums of their squares, exact.
    narrow, wide = (TensorSpec(dtype, scale=PowerOfTwoScale()) for dtype in (DataType.INT8, DataType.INT16))
    model, scaling = _prepared("conv"), ScaleOptions(NonOverflow(), NonOverflow())
    options = PlanOptions(activation=narrow, weight=narrow, bias=OwnBias(narrow))
    wanted = MixedPrecision((LayerTarget(wide, wide),), LayerCount(1))
    plans = [plan(model, entry) for entry in (options, *target_options(options, wanted))]
    params = [scale(model, _statistics("conv"), entry, scaling) for entry in plans]
    measured = sensitivity(model, _data("conv"), plans, params, candidates(model, plans, wanted))
    yield "sensitivity", "conv", fingerprint(measured)
    request = MixRequest(wanted, scaling)
    yield "mix", "conv", fingerprint(mix(model, _statistics("conv"), plans, _data("conv"), measured, request))


def _tune_digests() -> Iterator[tuple[str, str, Digest]]:
    activation, weight = (TensorSpec(dtype, scale=PowerOfTwoScale()) for dtype in (DataType.INT8, DataType.INT4))
    model = prepare(model_source(rough()), PrepareOptions())
    data = calibration_data(samples(rough(), 8), model.inputs)
    planned = plan(model, PlanOptions(activation=activation, weight=weight, bias=OwnBias(activation)))
    params = scale(model, observe(model, data, ObserveOptions()), planned, ScaleOptions(NonOverflow(), NonOverflow()))
    for step in TUNE_STEPS:
        if isinstance(step, NEEDS_TORCH) and find_spec("torch") is None:
            continue
        tuned = tune(model, model, planned, params, data, step)
        yield "tune", f"rough-{type(step).__name__}", _rounded(tuned)
    corrected = tune(model, model, planned, params, data, BiasCorrection())
    yield "tuned_model", "rough", fingerprint(tuned_model(model, corrected))
    yield "tuned_params", "rough", fingerprint(tuned_params(model, planned, corrected, None))


def _rounded(tuned: Tuned) -> Digest:
    """Return the digest of what the emit stage writes for a tuned result."""
    integers = {name: quantize_array(array, tuned.params.tensors[name]) for name, array in tuned.weights.items()}
    return fingerprint((integers, QuantParams(tuned.params.tensors)))


def _emit_digests() -> Iterator[tuple[str, str, Digest]]:
    for name in EXACT:
        for preset in PLANS:
            planned = _plan(name, preset)
            params = scale(_prepared(name), _statistics(name), planned, ScaleOptions())
            written = emit(_prepared(name), planned, params, EmitOptions(), {"quantry.version": "golden"})
            yield "emit", f"{name}-{preset}", fingerprint(written)


def _body_digests() -> Iterator[tuple[str, str, Digest]]:
    model, place = prepare(model_source(looping()), PrepareOptions()), BodyPlace("loop", "body")
    calls = body_calls(model, calibration_data(samples(looping()), model.inputs), ObserveOptions())
    yield "body_calls", "looping", fingerprint(calls)
    body = body_as_model(model, place, calls)
    yield "body_as_model", "looping", fingerprint(body)
    planned, data = plan(body, PLANS["XINT8"]), calibration_data(list(calls.calls[place]), body.inputs)
    params = scale(body, observe(body, data, ObserveOptions()), planned, ScaleOptions())
    written = emit(body, planned, params, EmitOptions(), {"quantry.version": "golden"})
    yield "place_bodies", "looping", fingerprint(place_bodies(model, ((place, written),)))


def _evaluate_digests() -> Iterator[tuple[str, str, Digest]]:
    # With powers of two and 16 bits the quantized model computes the same numbers as the float model, so that no score
    # is rounded.
    spec = TensorSpec(DataType.INT16, scale=PowerOfTwoScale())
    planned = plan(_prepared("movement"), PlanOptions(activation=spec, weight=spec, bias=OwnBias(spec)))
    params = scale(_prepared("movement"), _statistics("movement"), planned, ScaleOptions(NonOverflow(), NonOverflow()))
    written = emit(_prepared("movement"), planned, params, EmitOptions(), {"quantry.version": "golden"})
    options = EvaluateOptions(metrics=("l1", "l2", "cosine", "psnr", "sqnr"))
    result = evaluate(_prepared("movement"), written, _data("movement"), options)
    assert result.metrics["l1"].value == 0
    yield "evaluate", "movement", fingerprint(result)
    model, seen = _prepared("movement"), _statistics("movement")
    yield "closeness", "movement", fingerprint(_closeness(written))
    yield "guard", "movement", fingerprint(guard((model, model), written, (planned, params), seen, _data("movement")))


def _closeness(written: QuantizedModel) -> Closeness:
    with TemporaryDirectory() as folder:
        ours, theirs = Path(folder) / "float.onnx", Path(folder) / "quantized.onnx"
        write_model(_prepared("movement").model, ours)
        written.save(theirs)
        return closeness(FloatAgreement(ours, SampleCache(_data("movement"))), ModelFile(theirs), EXACTLY)
