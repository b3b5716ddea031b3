"""Every stage on fixed inputs, and the digest of what it returns."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from golden_models import EXACT, MODELS, conv, samples, uneven

from quantry.data.calibration_data import CalibrationData
from quantry.data.open_data import calibration_data
from quantry.emit import emit
from quantry.equalize import absorb, absorb_needs, equalize, group_channels, smooth, smooth_needs, split_outliers
from quantry.evaluate import evaluate
from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.graph.quant_plan import QuantPlan
from quantry.memo import Digest, Stage, fingerprint
from quantry.observe import Statistics, observe
from quantry.plan import plan
from quantry.prepare import convert, prepare
from quantry.recipe import (
    PRESETS,
    BiasAbsorption,
    BiasCorrection,
    ChannelGroups,
    CrossLayer,
    DataType,
    EmitOptions,
    Entropy,
    EqualizeOptions,
    EvaluateOptions,
    LayerWisePercentile,
    Method,
    MinMax,
    MinMSE,
    NonOverflow,
    NpuConversions,
    ObserveOptions,
    OutlierSplitting,
    OwnBias,
    Percentile,
    PlanOptions,
    PowerOfTwoScale,
    PrepareOptions,
    ScaleOptions,
    Selection,
    SmoothQuant,
    TensorSpec,
)
from quantry.scale import scale
from quantry.tune import retouch, tune, tuned_params

FILE = Path(__file__).with_name("stages.txt")
HEADING = "# stage, version, case, digest of the result; written by regenerate.py\n"

STAGES: dict[str, Stage[..., object]] = {
    stage.name: stage
    for stage in (
        *(prepare, convert, smooth, equalize, absorb, split_outliers, group_channels, observe, plan, scale),
        *(tune, retouch, tuned_params, emit, evaluate),
    )
}
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
    """Read the file; empty when there is none."""
    lines = FILE.read_text(encoding="utf-8").splitlines() if FILE.exists() else []
    parts = [line.split() for line in lines if line and not line.startswith("#")]
    return [Golden(stage, int(version), case, digest) for stage, version, case, digest in parts]


def current() -> list[Golden]:
    """Run all stages and return what the file should say."""
    return [Golden(stage, STAGES[stage].version, case, digest) for stage, case, digest in _digests()]


def moved(kept: list[Golden], now: list[Golden]) -> list[str]:
    """Return a sentence for each stage whose output moved while its version did not."""
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
    """Return a sentence for each stage whose version or cases are not those of the file."""
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
    yield from _tune_digests()
    yield from _emit_digests()
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
    return smooth(_prepared("conv"), seen, options, TensorSpec(), TensorSpec())


def _rewrite_digests() -> Iterator[tuple[str, str, Digest]]:
    model, absorption = prepare(model_source(uneven()), PrepareOptions()), BiasAbsorption(margin=0.0, gain=1.1)
    data = calibration_data(samples(uneven()), model.inputs)
    seen = observe(model, data, ObserveOptions(), absorb_needs(model, absorption))
    yield "absorb", "uneven", fingerprint(absorb(model, seen, absorption))
    splitting = OutlierSplitting(share=0.25, gain=1.5, tolerance=0.0)
    yield "split_outliers", "uneven", fingerprint(split_outliers(model, splitting, TensorSpec()))
    grouping = ChannelGroups(gain=1.5, tolerance=0.0)
    yield "group_channels", "uneven", fingerprint(group_channels(model, grouping, TensorSpec()))


def _tune_digests() -> Iterator[tuple[str, str, Digest]]:
    model, planned = _prepared("conv"), _plan("conv", "XINT8")
    params = scale(model, _statistics("conv"), planned, ScaleOptions(NonOverflow(), NonOverflow()))
    tuned = tune(model, model, planned, params, _data("conv"), BiasCorrection())
    yield "tune", "conv-BiasCorrection", fingerprint(tuned)
    yield "retouch", "conv", fingerprint(retouch(model, tuned))
    yield "tuned_params", "conv", fingerprint(tuned_params(model, planned, tuned, None))


def _emit_digests() -> Iterator[tuple[str, str, Digest]]:
    for name in EXACT:
        for preset in PLANS:
            planned = _plan(name, preset)
            params = scale(_prepared(name), _statistics(name), planned, ScaleOptions())
            written = emit(_prepared(name), planned, params, EmitOptions(), {"quantry.version": "golden"})
            yield "emit", f"{name}-{preset}", fingerprint(written)


def _evaluate_digests() -> Iterator[tuple[str, str, Digest]]:
    # With powers of two and 16 bits the quantized model computes the float one's numbers, so that no score is rounded.
    spec = TensorSpec(DataType.INT16, scale=PowerOfTwoScale())
    planned = plan(_prepared("movement"), PlanOptions(activation=spec, weight=spec, bias=OwnBias(spec)))
    params = scale(_prepared("movement"), _statistics("movement"), planned, ScaleOptions(NonOverflow(), NonOverflow()))
    written = emit(_prepared("movement"), planned, params, EmitOptions(), {"quantry.version": "golden"})
    options = EvaluateOptions(metrics=("l1", "l2", "cosine", "psnr", "sqnr"))
    result = evaluate(_prepared("movement"), written, _data("movement"), options)
    assert result.metrics["l1"].value == 0
    yield "evaluate", "movement", fingerprint(result)
