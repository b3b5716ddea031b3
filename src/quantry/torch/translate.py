"""From the configuration of Quark for PyTorch to a recipe; one place."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from quantry.errors import RecipeError, SelectionError, nearest_spelling
from quantry.plan.selection import meant, name_pattern
from quantry.recipe import (
    Bias,
    DataType,
    DerivedBias,
    EqualizeOptions,
    FloatBias,
    LayerTypes,
    Method,
    MinMax,
    NpuConversions,
    NpuLimits,
    OwnBias,
    PerTensor,
    PlanOptions,
    PowerOfTwoScale,
    PrepareOptions,
    Recipe,
    ScaleOptions,
    Selection,
    TensorSpec,
    TuneOptions,
    TuneStep,
)
from quantry.torch.config import EQUALIZATIONS, QConfig, QLayerConfig, QTensorConfig
from quantry.torch.enums import DeviceType


@dataclass(frozen=True)
class Place:
    """What a user may call one node of a captured graph by.

    Attributes:
        node: Its name in the graph.
        names: Its module's path and those above it, its tensors, and its name.
        classes: Names of the classes of those modules.
    """

    node: str
    names: tuple[str, ...]
    classes: tuple[str, ...]


def recipe_of(config: QConfig, places: Iterable[Place] = ()) -> Recipe:
    """Return the recipe that a configuration stands for.

    Args:
        config: The configuration.
        places: The nodes that names in it may mean.

    Raises:
        RecipeError: The configuration asks for something that does not go together.
        SelectionError: A name means no node.
    """
    layer = config.global_quant_config
    activation, weight = layer.activation, layer.weight
    if activation is None or weight is None:
        raise RecipeError(
            "QLayerConfig must say what activations and weights become, got "
            f"{'no input_tensors' if activation is None else 'no weight'}; weights alone are quantized by quantry.onnx"
        )
    known = tuple(places)
    specs = activation.tensor_spec(), weight.tensor_spec()
    bias = bias_of(layer.bias)
    plan = PlanOptions(
        activation=specs[0],
        weight=specs[1],
        bias=bias,
        selection=Selection(exclude=excluded(config, known)),
        layers=layer_types(config, known),
        force_pass_through=True,
    )
    npu = _fits_npu(specs, bias)
    converted = NpuConversions() if layer.target_device == DeviceType.IPU else None
    algorithms = tuple(config.algo_config or ())
    equalize = {EQUALIZATIONS[type(entry)]: entry for entry in algorithms if type(entry) in EQUALIZATIONS}
    steps = tuple(entry for entry in algorithms if isinstance(entry, TuneStep))
    return Recipe(
        name="quantry.torch",
        prepare=PrepareOptions(npu=converted),
        equalize=EqualizeOptions(**equalize),
        plan=plan,
        scale=ScaleOptions(
            activation=_method(activation), weight=_method(weight), npu=NpuLimits() if npu and not plan.layers else None
        ),
        tune=TuneOptions(steps),
    )


def bias_of(config: QTensorConfig | None) -> Bias:
    """Return what biases become: float, on the accumulator's grid, or with a scale of their own."""
    if config is None:
        return FloatBias()
    return DerivedBias() if config.is_accumulator else OwnBias(config.tensor_spec())


def excluded(config: QConfig, places: tuple[Place, ...]) -> tuple[str, ...]:
    """Return the names of the nodes that stay float."""
    silent = [pattern for pattern, layer in config.layer_quant_config.items() if layer is None]
    found = [node for pattern in (*(config.exclude or ()), *silent) for node in _nodes(pattern, places, "exclude")]
    for kind, layer in config.layer_type_quant_config.items():
        if layer is None:
            found += _nodes_of_class(kind, places)
    return tuple(dict.fromkeys(found))


def layer_types(config: QConfig, places: tuple[Place, ...]) -> tuple[LayerTypes, ...]:
    """Return the types of single layers; those by name win over those by class."""
    by_class = [
        (_nodes_of_class(kind, places), layer) for kind, layer in config.layer_type_quant_config.items() if layer
    ]
    by_name = [
        (_nodes(name, places, "layer_quant_config"), layer)
        for name, layer in config.layer_quant_config.items()
        if layer
    ]
    return tuple(_layer_types(nodes, layer) for nodes, layer in (*by_class, *by_name))


def _layer_types(nodes: list[str], layer: QLayerConfig) -> LayerTypes:
    return LayerTypes(
        match=tuple(nodes),
        activation=None if layer.activation is None else layer.activation.tensor_spec(),
        weight=None if layer.weight is None else layer.weight.tensor_spec(),
        bias=None if layer.bias is None else bias_of(layer.bias),
    )


def _nodes(pattern: str, places: tuple[Place, ...], where: str) -> list[str]:
    is_meant = name_pattern(pattern, f"QConfig.{where}")
    hits = [place.node for place in places if any(map(is_meant, place.names))]
    if not hits:
        names = sorted({name for place in places for name in place.names})
        raise SelectionError(
            f"QConfig.{where} must name a submodule, a node or a tensor of the captured graph, got {pattern!r}"
            f"{meant(pattern, names)}"
        )
    return hits


def _nodes_of_class(kind: Any, places: tuple[Place, ...]) -> list[str]:
    label = kind if isinstance(kind, str) else getattr(kind, "__name__", repr(kind))
    hits = [place.node for place in places if label in place.classes]
    if not hits:
        classes = sorted({name for place in places for name in place.classes})
        raise SelectionError(
            f"QConfig.layer_type_quant_config must name a module class of the captured model, got {label!r}"
            f"{nearest_spelling(label, classes)}; it has {', '.join(classes)}"
        )
    return hits


def _method(config: QTensorConfig) -> Method:
    return config.method or MinMax()


def _fits_npu(specs: tuple[TensorSpec, TensorSpec], bias: Bias) -> bool:
    """Whether everything is what an integer NPU computes with; its limits then hold too."""
    tensors: Mapping[str, TensorSpec] = {"activation": specs[0], "weight": specs[1]}
    if not isinstance(bias, OwnBias):
        return False
    bytes_only = all(
        spec.dtype == DataType.INT8 or (name == "activation" and spec.dtype == DataType.UINT8)
        for name, spec in (*tensors.items(), ("bias", bias.spec))
    )
    return bytes_only and all(
        spec.symmetric and isinstance(spec.scale, PowerOfTwoScale) and spec.granularity == PerTensor()
        for spec in (*tensors.values(), bias.spec)
    )
