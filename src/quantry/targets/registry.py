"""All built-in targets, and how a target is found by name."""

from pathlib import Path

from quantry.errors import RecipeError, nearest_spelling
from quantry.graph.load import ModelLike
from quantry.recipe import PowerOfTwoScale, Recipe
from quantry.targets.backends import BACKENDS, Backend
from quantry.targets.builtin.amd import NPU_INT8, VITISAI
from quantry.targets.builtin.openvino import OPENVINO_CPU, OPENVINO_NPU
from quantry.targets.builtin.ort import ORT_CPU, ORT_WEB
from quantry.targets.builtin.qnn_htp import QNN_HTP
from quantry.targets.builtin.stm32n6 import STM32N6
from quantry.targets.builtin.tensorrt import TENSORRT
from quantry.targets.load import SUFFIXES, load_target
from quantry.targets.rules import CheckedModel
from quantry.targets.target import Target

_BUILT_IN = (VITISAI, QNN_HTP, OPENVINO_CPU, OPENVINO_NPU, ORT_CPU, TENSORRT, ORT_WEB, STM32N6, NPU_INT8)

TARGETS: dict[str, Target] = {target.name: target for target in _BUILT_IN}
"""The built-in targets by name."""


def find_target(target: Target | str) -> Target:
    """Return the target of that name.

    Args:
        target: A target, its name, or the path of a YAML or Python file that defines it.

    Raises:
        RecipeError: There is no such target; the message suggests the nearest spelling.
    """
    if isinstance(target, Target):
        return target
    if Path(target).suffix in SUFFIXES:
        return load_target(Path(target))
    built_in = TARGETS.get(target.lower())
    if built_in is None:
        raise RecipeError(
            f"--target must be one of {', '.join(TARGETS)}, or a .yaml or .py file, got {target!r}"
            f"{nearest_spelling(target, TARGETS)}"
        )
    return built_in


def backend_of(target: Target | str) -> Backend | None:
    """Return the backend of a target; None if only its rules are known.

    Args:
        target: The target or its name.

    Raises:
        RecipeError: The target names a backend that does not exist.
    """
    backend = find_target(target).backend
    if isinstance(backend, Backend) or not backend:
        return backend or None
    if backend not in BACKENDS:
        raise RecipeError(
            f"Target.backend must be one of {', '.join(BACKENDS)}, got {backend!r}{nearest_spelling(backend, BACKENDS)}"
        )
    return BACKENDS[backend]


def default_target(recipe: Recipe | None = None) -> Target:
    """Return the target that a recipe is for if it does not say.

    Args:
        recipe: The recipe; None is one with scales of any value.

    Returns:
        ``vitisai`` for power-of-two scales, else ``ort-cpu``.
    """
    if recipe is not None and isinstance(recipe.plan.weight.scale, PowerOfTwoScale):
        return VITISAI
    return ORT_CPU


def target_of_model(model: ModelLike) -> Target:
    """Return the target that a quantized model was written for, as far as its scales show.

    Args:
        model: The model.

    Returns:
        ``vitisai`` if most scales are powers of two, else ``ort-cpu``.
    """
    tensors = CheckedModel(model).tensors.tensors.values()
    single = [tensor for tensor in tensors if tensor.step is not None]
    powers = sum(tensor.position is not None for tensor in single)
    return VITISAI if 2 * powers > len(single) else ORT_CPU
