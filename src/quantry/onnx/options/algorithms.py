"""Options of equalization and of algorithms that change weights."""

from dataclasses import replace
from typing import Any

from quantry.errors import RecipeError
from quantry.onnx.options import finetuning, gptq, mixed_precision
from quantry.onnx.options.draft import Draft, with_field
from quantry.onnx.options.option_row import Apply, Kind, OptionRow, without_bearing
from quantry.recipe import BiasCorrection


def _cross_layer(key: str, name: str) -> Apply:
    def apply(draft: Draft, value: Any) -> Draft:
        if draft.equalize.cross_layer is None:
            return draft.noted(f"{key} has no effect without include_cle")
        changed: Draft = with_field(draft, f"equalize.cross_layer.{name}", value)
        return changed

    return apply


def _steps(draft: Draft, value: int) -> Draft:
    if value == 0:
        return replace(draft, equalize=replace(draft.equalize, cross_layer=None))
    return _cross_layer("CLESteps", "steps")(draft, value)


def _smooth_alpha(draft: Draft, value: float) -> Draft:
    if draft.equalize.smooth is None:
        return draft.noted("SmoothAlpha has no effect without include_sq")
    if not 0 <= value <= 1:
        raise RecipeError(f"extra_options['SmoothAlpha'] must be from 0 to 1, got {value!r}")
    changed: Draft = with_field(draft, "equalize.smooth.alpha", float(value))
    return changed


def _bias_correction(draft: Draft, value: bool) -> Draft:
    return replace(draft, bias_correction=BiasCorrection() if value else None)


def _equalization(key: str, kind: Kind, default: str, meaning: str, name: str) -> OptionRow:
    return OptionRow(key, kind, default, meaning, f"equalize.cross_layer.{name}", _cross_layer(key, name))


def _belongs(key: str, kind: Kind, default: str, meaning: str, owner: str) -> OptionRow:
    """An option of an algorithm whose switch is refused, so that the option never has anything to set."""
    return OptionRow(key, kind, default, meaning, f"nothing: {owner} is refused", without_bearing(key, owner))


ROWS = (
    _equalization(
        "CLEScaleAppendBias", Kind.BOOL, "True", "Let a bias count in the range of its channel.", "include_bias"
    ),
    OptionRow(
        "CLEBalanceMethod",
        Kind.TEXT,
        "'max'",
        "What a channel's range is.",
        refused="a channel's range is its largest magnitude: 'max'",
        harmless=("max",),
    ),
    _equalization(
        "CLEWeightThreshold", Kind.FLOAT, "0.5", "Channels with less weight than this stay.", "weight_threshold"
    ),
    _equalization("CLEScaleUseThreshold", Kind.BOOL, "True", "Whether that threshold counts.", "use_threshold"),
    _equalization(
        "CLETotalLayerDiffThreshold", Kind.FLOAT, "2e-7", "CLESteps=-1: the change that counts as rest.", "convergence"
    ),
    OptionRow(
        "CLESteps",
        Kind.INT,
        "1",
        "Sweeps of cross-layer equalization; 0 does none, -1 repeats until the weights rest.",
        "equalize.cross_layer.steps",
        _steps,
    ),
    OptionRow(
        "SmoothAlpha",
        Kind.FLOAT,
        "0.5",
        "How much SmoothQuant moves from activations to weights, 0 to 1.",
        "equalize.smooth.alpha",
        _smooth_alpha,
    ),
    _belongs("RMatrixDim", Kind.INT, "4096", "Size of QuaRot's rotation.", "include_rotation"),
    _belongs("UseRandomHad", Kind.BOOL, "False", "QuaRot: random Hadamard matrices.", "include_rotation"),
    _belongs("RConfigPath", Kind.TEXT, "None", "QuaRot: the file that names the layers.", "include_rotation"),
    *gptq.ROWS,
    OptionRow(
        "BiasCorrection",
        Kind.BOOL,
        "False",
        "Correct the shift of each channel's mean in its bias.",
        "tune.steps = (BiasCorrection(),)",
        _bias_correction,
    ),
    *mixed_precision.ROWS,
    *finetuning.ROWS,
)
