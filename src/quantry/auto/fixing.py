"""`fix`: diagnoses an existing result, measures every suggested fix and combines those that help."""

import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

from quantry.auto.candidates import Candidate
from quantry.auto.effort import Effort, find_effort
from quantry.auto.recipe_search import AutoReport, RecipeSearch
from quantry.auto.run import AutoInputs, AutoResult, trial_inputs, with_report
from quantry.auto.trials import HeldOutTrials
from quantry.data.calibration_data import CalibrationData
from quantry.diagnosis import Diagnosis, diagnose
from quantry.errors import DataError
from quantry.graph.save import write_model
from quantry.quantization import QuantizationResult
from quantry.targets import Target, default_target, find_target


@dataclass(frozen=True)
class FixResult:
    """A result after its diagnosis was acted on.

    Attributes:
        diagnosis: The diagnosis of the given result; causes are ordered by the measured gain of their best fix.
        result: The fixed result, with what was tried.
    """

    diagnosis: Diagnosis
    result: AutoResult

    def __str__(self) -> str:
        return str(self.diagnosis)


def fix(
    result: QuantizationResult, *, target: Target | str | None = None, effort: Effort | str = "default"
) -> FixResult:
    """Diagnose a result, measure every suggested fix on held-out samples, and combine those that help.

    Args:
        result: The result of `quantry.quantize`.
        target: The deployment target, which may rule out fixes; None is the recipe's.
        effort: How much work is allowed, see `quantry.auto.EFFORTS`.

    Returns:
        The diagnosis with measured gains, and the fixed result. Its recipe is the given one if nothing helps.

    Raises:
        DataError: The result was not calibrated with data.

    Example:
        >>> fixed = quantry.fix(quantry.quantize("model.onnx", data, "XINT8"))  # doctest: +SKIP
        >>> print(fixed)  # doctest: +SKIP
        >>> fixed.result.save("model.fixed.onnx")  # doctest: +SKIP
    """
    started, name = time.perf_counter(), target or result.recipe.target
    deployed = find_target(name) if name else default_target(result.recipe)
    with tempfile.TemporaryDirectory() as folder:
        given = _inputs(result, Path(folder))
        with trial_inputs(given, result.recipe) as inputs:
            trials = HeldOutTrials(inputs, find_effort(effort), Path(folder))
            report = RecipeSearch(trials, deployed).run_fixes(Candidate.whole("the given recipe", result.recipe))
            diagnosis = diagnose(result) if report.diagnosis is None else report.diagnosis
            return FixResult(_ordered(diagnosis, report), with_report(given, report, trials, started))


def _inputs(result: QuantizationResult, folder: Path) -> AutoInputs:
    data = result._data
    if data.calibration is None:
        raise DataError("fix must compare models on calibration data, got a result that was calibrated without any")
    calibration = data.calibration if isinstance(data.calibration, CalibrationData) else data.calibration()
    evaluation = None if data.evaluation is data.calibration else result.evaluation_data
    path = result.float_file
    if path is None or not path.exists():
        path = folder / "float.onnx"
        write_model(result.stages.prepared.value.model, path)
    return AutoInputs(path, calibration, evaluation, store=result._memo.store)


def _ordered(diagnosis: Diagnosis, report: AutoReport) -> Diagnosis:
    """Return the diagnosis with measured gains: causes whose fix helps first, those without any measured fix next."""
    findings = [replace(finding, gain=report.gains.get(finding.title)) for finding in diagnosis.findings]

    def place(entry: tuple[int, float | None]) -> tuple[int, float, int]:
        index, gain = entry
        if gain is None:
            return 1, 0.0, index
        return (0, -gain, index) if gain > 0 else (2, -gain, index)

    order = sorted(((index, finding.gain) for index, finding in enumerate(findings)), key=place)
    return replace(diagnosis, findings=tuple(findings[index] for index, _ in order))
