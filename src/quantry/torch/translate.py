"""Translates a `QConfig` of Quark for PyTorch into a recipe."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from quantry.errors import ConflictError, RecipeError, SelectionError, nearest_spelling
from quantry.plan.selection import meant, name_pattern
from quantry.recipe import (
    Bias,
    DataType,
    DerivedBias,
    EqualizeOptions,
    FloatBias,
    FloatScale,
    LayerTypes,
    Method,
    MinMax,
    NpuConversions,
    NpuLimits,
    OwnBias,
    PerChannel,
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
from quantry.recipe.compatibility import Vocabulary, conflict_error
from quantry.torch.config import EQUALIZATIONS, QConfig, QTensorConfig
from quantry.torch.enums import DATA_TYPES, DeviceType, QSchemeType, ScaleType


@dataclass(frozen=True)
class NodeNames:
    """The names by which users may select one node of a captured graph.

    Attributes:
        node: Its name in the graph.
        names: Paths of its module and the modules above, its tensors, and its own name.
        classes: Class names of these modules.
    """

    node: str
    names: tuple[str, ...]
    classes: tuple[str, ...]


def recipe_of(config: QConfig, known_nodes: Iterable[NodeNames] = ()) -> Recipe:
    """Return the recipe for a configuration.

    Args:
        config: The configuration.
        known_nodes: The names of all nodes.

    Raises:
        RecipeError: Two options do not go together.
        SelectionError: A name matches no node.
    """
    layer = config.global_quant_config
    activation, weight = layer.activation, layer.weight
    if activation is None or weight is None:
        raise RecipeError(
            "QLayerConfig must have input_tensors and weight, got "
            f"{'no input_tensors' if activation is None else 'no weight'}; for weights only, use quantry.onnx"
        )
    nodes = tuple(known_nodes)
    specs = activation.tensor_spec(), weight.tensor_spec()
    bias = bias_of(layer.bias)
    plan = PlanOptions(
        activation=specs[0],
        weight=specs[1],
        bias=bias,
        selection=Selection(exclude=excluded(config, nodes)),
        layers=layer_types(config, nodes),
        force_pass_through=True,  # As the presets for NPUs have it: every tensor of the graph is quantized.
    )
    npu = _fits_npu(specs, bias)
    converted = NpuConversions() if layer.target_device == DeviceType.IPU else None
    algorithms = tuple(config.algo_config or ())
    equalize = {EQUALIZATIONS[type(entry)]: entry for entry in algorithms if type(entry) in EQUALIZATIONS}
    steps = tuple(entry for entry in algorithms if isinstance(entry, TuneStep))
    scale = ScaleOptions(
        activation=_method(activation), weight=_method(weight), npu=NpuLimits() if npu and not plan.layers else None
    )
    try:
        return Recipe(
            name="quantry.torch",
            prepare=PrepareOptions(npu=converted),
            equalize=EqualizeOptions(**equalize),
            plan=plan,
            scale=scale,
            tune=TuneOptions(steps),
        )
    except ConflictError as error:
        raise conflict_error(error.conflict, _LayerWords()) from error


class _LayerWords(Vocabulary):
    """Conflicts between types in the names of a `QLayerConfig`."""

    def name(self, field: str) -> str:
        """Return the field of a specification."""
        tensors = {"activation": "input_tensors", "weight": "weight", "bias": "bias"}
        names = {"dtype": "dtype", "scale": "scale_type", "symmetric": "symmetric", "granularity": "qscheme"}
        stage, tensor, *fields = field.replace(".spec", "").split(".")
        if stage != "plan" or tensor not in tensors:
            return field
        return ".".join(("QLayerConfig", tensors[tensor], *(names[entry] for entry in fields)))

    def value(self, field: str, value: Any) -> str:
        """Return the member for a value."""
        if isinstance(value, DataType):
            return next((str(member) for member, dtype in DATA_TYPES.items() if dtype == value), value.value)
        kind = value if isinstance(value, type) else type(value)
        members: dict[type, Enum | None] = {
            PerTensor: QSchemeType.per_tensor,
            PerChannel: QSchemeType.per_channel,
            PowerOfTwoScale: ScaleType.pof2,
            FloatScale: ScaleType.float,
            FloatBias: None,
        }
        return str(members[kind]) if kind in members else super().value(field, value)


def bias_of(config: QTensorConfig | None) -> Bias:
    """Return the bias: float, with the scale of the accumulator, or with its own scale."""
    if config is None:
        return FloatBias()
    return DerivedBias() if config.is_accumulator else OwnBias(config.tensor_spec())


def excluded(config: QConfig, known_nodes: tuple[NodeNames, ...]) -> tuple[str, ...]:
    """Return the names of the nodes that stay float."""
    silent = [pattern for pattern, layer in config.layer_quant_config.items() if layer is None]
    nodes = [node for pattern in (*(config.exclude or ()), *silent) for node in _nodes(pattern, known_nodes, "exclude")]
    for kind, layer in config.layer_type_quant_config.items():
        if layer is None:
            nodes += _nodes_of_class(kind, known_nodes)
    return tuple(dict.fromkeys(nodes))


def layer_types(config: QConfig, known_nodes: tuple[NodeNames, ...]) -> tuple[LayerTypes, ...]:
    """Return the types of single layers; names override classes."""
    by_class = [
        (_nodes_of_class(kind, known_nodes), layer) for kind, layer in config.layer_type_quant_config.items() if layer
    ]
    by_name = [
        (_nodes(name, known_nodes, "layer_quant_config"), layer)
        for name, layer in config.layer_quant_config.items()
        if layer
    ]
    return tuple(
        LayerTypes(
            match=tuple(nodes),
            activation=None if layer.activation is None else layer.activation.tensor_spec(),
            weight=None if layer.weight is None else layer.weight.tensor_spec(),
            bias=None if layer.bias is None else bias_of(layer.bias),
        )
        for nodes, layer in (*by_class, *by_name)
    )


def _nodes(pattern: str, known_nodes: tuple[NodeNames, ...], option: str) -> list[str]:
    is_meant = name_pattern(pattern, f"QConfig.{option}")
    hits = [entry.node for entry in known_nodes if any(map(is_meant, entry.names))]
    if not hits:
        names = sorted({name for entry in known_nodes for name in entry.names})
        raise SelectionError(
            f"QConfig.{option} must name a submodule, a node or a tensor of the captured graph, got {pattern!r}"
            f"{meant(pattern, names)}"
        )
    return hits


def _nodes_of_class(kind: Any, known_nodes: tuple[NodeNames, ...]) -> list[str]:
    class_name = kind if isinstance(kind, str) else getattr(kind, "__name__", repr(kind))
    hits = [entry.node for entry in known_nodes if class_name in entry.classes]
    if not hits:
        classes = sorted({name for entry in known_nodes for name in entry.classes})
        raise SelectionError(
            f"QConfig.layer_type_quant_config must name a module class of the captured model, got {class_name!r}"
            f"{nearest_spelling(class_name, classes)}; it has {', '.join(classes)}"
        )
    return hits


def _method(config: QTensorConfig) -> Method:
    return config.method or MinMax()


def _fits_npu(specs: tuple[TensorSpec, TensorSpec], bias: Bias) -> bool:
    """Return whether an integer NPU can compute with these types; its limits then apply too."""
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
