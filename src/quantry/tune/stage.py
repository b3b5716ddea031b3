"""Stage 6: tunes weights, biases and scales; one stage call per step of the recipe."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import import_module, util
from typing import Any

from quantry.data.calibration_data import CalibrationData
from quantry.errors import MissingExtraError
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.memo import stage
from quantry.numerics.tensor_params import QuantParams
from quantry.recipe import AdaQuant, AdaRound, BiasCorrection, Brecq, Distill, Gptq, Tqt, TuneStep
from quantry.runtime.devices import existing_device
from quantry.runtime.environment import environment
from quantry.tune.fallback import step_or_nothing
from quantry.tune.task import Tuned, TuneTask


@dataclass(frozen=True)
class Algorithm:
    """The module of an algorithm, which is imported when it runs, because some import torch.

    Attributes:
        module: Name of the module; it has a function ``run(task, step) -> Tuned``.
        needs_torch: Whether it always trains with torch.
    """

    module: str
    needs_torch: bool = True


ALGORITHMS: Mapping[type, Algorithm] = {
    BiasCorrection: Algorithm("quantry.tune.bias_correction", needs_torch=False),
    Gptq: Algorithm("quantry.tune.gptq", needs_torch=False),
    AdaRound: Algorithm("quantry.tune.adaround_and_adaquant", needs_torch=False),
    AdaQuant: Algorithm("quantry.tune.adaround_and_adaquant", needs_torch=False),
    Brecq: Algorithm("quantry.tune.blockwise"),
    Tqt: Algorithm("quantry.tune.blockwise"),
    Distill: Algorithm("quantry.tune.distill"),
}
"""One entry per type of step."""


_DEVICES = ("inference_device", "device")


def on_this_machine(step: TuneStep) -> TuneStep:
    """Return a step whose devices exist; one that does not becomes the CPU, with one warning."""
    requested = {name: getattr(step, name) for name in _DEVICES if hasattr(step, name)}
    existing: dict[str, Any] = {
        name: existing_device(device, inference=name == "inference_device") for name, device in requested.items()
    }
    return step if existing == requested else replace(step, **existing)


def _environment(arguments: Mapping[str, Any]) -> Mapping[str, str]:
    step = arguments["step"]
    devices = [getattr(step, name) for name in _DEVICES if hasattr(step, name)]
    # The processor is always in the key: what a step does not run on its devices, NumPy and the kernels compute.
    return environment(libraries=("onnxruntime", "torch", "numpy"), kernels=True, devices=["cpu", *devices])


@stage(name="tune", version=12, environment=_environment)
def tune(
    reference: FloatModel,
    model: FloatModel,
    plan: QuantPlan,
    params: QuantParams,
    data: CalibrationData,
    step: TuneStep,
) -> Tuned:
    """Run one tuning step.

    Args:
        reference: The float model whose outputs are the target.
        model: The model to tune: the reference, or the result of the previous step.
        plan: Which tensors are quantized.
        params: With which scales and zero points.
        data: Samples.
        step: The algorithm and its options.

    Returns:
        New weights, biases and parameters. A step that fails numerically changes nothing and says so in a note; so does
        a single layer in steps that tune one layer after the other.

    Raises:
        MissingExtraError: The step trains and torch is not installed.
        ModelError: onnxruntime cannot run the model.
        DataError: onnxruntime cannot run it on a sample.
    """
    algorithm = ALGORITHMS[type(step)]
    if algorithm.needs_torch and util.find_spec("torch") is None:
        raise MissingExtraError(
            f"{type(step).__name__} trains with torch, which is not installed; in tune; install quantry[torch], or use "
            "Gptq, which needs no training"
        )
    run: Callable[[TuneTask, TuneStep], Tuned] = import_module(algorithm.module).run
    task = TuneTask(reference, model, plan, params, data)
    return step_or_nothing(type(step).__name__, task, lambda: run(task, step))
