"""Types of single layers and tensors must go with the format and the NPU as those of the whole model do."""

from collections.abc import Iterator
from dataclasses import replace

from quantry.errors import RecipeError
from quantry.recipe.bias import Bias, OwnBias
from quantry.recipe.compatibility import check_types
from quantry.recipe.data_type import DataType
from quantry.recipe.layers import TensorTypes, nearest_bias
from quantry.recipe.mixing import MixOptions
from quantry.recipe.npu_compatibility import check_npu
from quantry.recipe.options import Format, PlanOptions, ScaleOptions
from quantry.recipe.tensor_spec import TensorSpec


def check_layers(plan: PlanOptions, mix: MixOptions, scale: ScaleOptions, emitted: Format) -> None:
    """Refuse types of layers and tensors that the format cannot carry or the NPU cannot compute.

    Args:
        plan: The entries, and the types of the whole model.
        mix: What layers may become.
        scale: Whether the NPU's limits are asked for.
        emitted: The format asked for.

    Raises:
        RecipeError: Types do not go together; the message names the entry.
    """
    for where, variant in _variants(plan, mix):
        try:
            check_npu(variant, scale, wide=True)
            check_types(variant, emitted)
        except RecipeError as error:
            raise RecipeError(f"{where}: {error}") from error


def _variants(plan: PlanOptions, mix: MixOptions) -> Iterator[tuple[str, PlanOptions]]:
    """Yield, for each entry, what the options of the whole model would be if it held for all."""
    whole = replace(plan, layers=(), tensors=())
    for index, layer in enumerate(plan.layers):
        if not layer.keep_float:
            yield f"plan.layers[{index}]", _with_types(whole, layer.activation, layer.weight, layer.bias)
        if layer.output is not None:
            # What a layer writes is what others read, so it must be a type of activations as well.
            yield f"plan.layers[{index}].output", _with_types(whole, layer.output, None, None)
    for index, tensor in enumerate(plan.tensors):
        yield f"plan.tensors[{index}]", _with_tensor(whole, tensor)
    for index, target in enumerate(() if mix.mixed is None else mix.mixed.targets):
        yield f"mix.mixed.targets[{index}]", _with_types(whole, target.activation, target.weight, target.bias)


def _with_types(
    whole: PlanOptions, activation: TensorSpec | None, weight: TensorSpec | None, bias: Bias | None
) -> PlanOptions:
    activation, weight = activation or whole.activation, weight or whole.weight
    bias = bias or nearest_bias(whole.bias, activation, weight)
    return replace(whole, activation=activation, weight=weight, bias=bias)


def _with_tensor(whole: PlanOptions, tensor: TensorTypes) -> PlanOptions:
    # Whether it is an activation, a weight or a bias is known only with the model; 32 bits are for biases mostly.
    if tensor.spec.dtype == DataType.INT32:
        wide = replace(whole.weight, dtype=DataType.INT16) if whole.weight.dtype.is_integer else whole.weight
        return replace(whole, weight=wide, bias=OwnBias(tensor.spec))
    return replace(whole, weight=tensor.spec, bias=nearest_bias(whole.bias, whole.activation, tensor.spec))
