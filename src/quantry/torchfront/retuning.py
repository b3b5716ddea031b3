"""Tuning steps of a recipe on a module whose scales were chosen since it was quantized."""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from quantry.data.open_data import calibration_data
from quantry.errors import ModelError, RecipeError
from quantry.recipe import TuneStep
from quantry.torchfront.calibration_samples import on_cpu
from quantry.torchfront.freezing import current_params
from quantry.torchfront.quantized_module import QuantizedModule, build_in_place_of, require_quantized
from quantry.tune import tune, tuned_model, tuned_params


def retune(module: QuantizedModule, data: Any, steps: Iterable[TuneStep]) -> QuantizedModule:
    """Run label-free algorithms such as GPTQ with the scales that a module has now.

    In ``quantize_graph`` and ``ModelQuantizer`` they run right behind calibration. Where `choose_scales` comes between
    the two, the algorithms have to round to the new scales. Weights start from those the module was quantized with.

    Args:
        module: What quantization after training returned; it is left as it was.
        data: Calibration data, as ``quantize_graph`` takes them.
        steps: The algorithms in order: objects of ``quantry.recipe`` such as ``Gptq()``.

    Returns:
        A new module in evaluation mode, with scales that are not learned. Batch normalizations of tuned layers are
        folded.

    Raises:
        ModelError: The module is no quantized one, or is frozen.
        RecipeError: There are no steps.
    """
    require_quantized(module, "retune")
    start, chosen = module.blueprint, tuple(steps)
    _check(module, chosen)
    model, params = start.model, current_params(module)
    samples = calibration_data(on_cpu(data), model.inputs)
    changed: set[str] = set()
    for step in chosen:
        done = tune(start.model, model, start.plan, params, samples, step)
        model = tuned_model(model, done)
        params = tuned_params(model, start.plan, done, start.recipe.scale.npu)
        changed |= set(done.weights)
    initializers = start.model.model.graph.initializers
    before = {name: initializers[name].const_value for name in changed if name not in start.untuned}
    untuned = {name: np.asarray(value.numpy(), np.float32) for name, value in before.items() if value is not None}
    final = replace(start, model=model, params=params, untuned={**start.untuned, **untuned})
    return build_in_place_of(module, final, changed)


def _check(module: QuantizedModule, steps: tuple[TuneStep, ...]) -> None:
    if not steps:
        raise RecipeError("retune needs at least one algorithm, got none; write such as steps=[Gptq()]")
    if module.is_frozen:
        raise ModelError("a module is tuned before it is frozen, got a frozen one; in retune")
