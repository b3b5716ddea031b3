"""`QConfig`: a configuration by tensors and layers, as AMD Quark 0.10 and later spell it."""

import re
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self

import onnx_ir as ir

from quantry.errors import RecipeError, require_known
from quantry.graph.load import model_source
from quantry.onnx.algorithms import AlgoConfig
from quantry.onnx.config import Config, KnownAttributes
from quantry.onnx.options import FIELDS, ROWS, RecipeDraft
from quantry.onnx.options.preprocessing import WRITTEN_DIFFERENTLY
from quantry.onnx.plain_data import algorithm_of, from_plain, layer_of, to_plain
from quantry.onnx.specs import QLayerConfig, QTensorConfig
from quantry.onnx.translate import Job, checked_options, finished
from quantry.plan.selection import matching
from quantry.recipe import (
    Bias,
    DataType,
    DerivedBias,
    FloatScale,
    LayerTypes,
    MinMax,
    MinMSE,
    NpuConversions,
    NpuLimits,
    OwnBias,
    PowerOfTwoScale,
    Qdq,
    Selection,
    Subgraph,
    TensorSpec,
)
from quantry.recipe.checked import field_names


def layer_entries(
    field_name: str, layers: Mapping[QLayerConfig | None, Iterable[Any]], model: Any, *, operators: bool = False
) -> tuple[LayerTypes, ...]:
    """Return the types of single layers, in the order of the mapping.

    Args:
        field_name: The field, for messages.
        layers: Names of layers by specification; the key None leaves them float.
        model: The float model, in which pairs of first and last nodes are looked up.
        operators: Whether the names are operator types.

    Raises:
        RecipeError: Something is not a name, or a specification is empty.
    """
    entries = []
    for layer, names in layers.items():
        if layer is not None and not isinstance(layer, QLayerConfig):
            raise RecipeError(f"{field_name} must have QLayerConfig as keys, got {layer!r}")
        if isinstance(names, str):
            raise RecipeError(f"{field_name} must have lists of names as values, got {names!r} of type str")
        match = tuple(names) if operators else tuple(_pattern(field_name, entry, model) for entry in names)
        if match:
            selected: dict[str, Any] = {"operators": match} if operators else {"match": match}
            entries.append(LayerTypes(**selected, **_types(field_name, layer)))
    return tuple(entries)


def _names(entries: Iterable[Any]) -> list[Any]:
    """Return names of nodes, with pairs of them as tuples, which files hold as lists."""
    return [tuple(entry) if isinstance(entry, list) else entry for entry in entries]


def bias_of(bias: QTensorConfig, field_name: str) -> Bias:
    """Return the bias for a specification: int32 with a float scale is derived from activation and weight.

    Args:
        bias: The specification.
        field_name: The field, for messages.
    """
    spec = bias.to_spec(field_name)
    return DerivedBias() if spec.dtype == DataType.INT32 and isinstance(spec.scale, FloatScale) else OwnBias(spec)


def _types(field_name: str, layer: QLayerConfig | None) -> dict[str, Any]:
    if layer is None:
        return {"keep_float": True}
    types: dict[str, TensorSpec | Bias] = {}
    for name, spec in (("activation", layer.inputs()), ("output", layer.output_tensors), ("weight", layer.weight)):
        if spec is not None:
            types[name] = spec.to_spec(f"{field_name}: QLayerConfig.{name}")
    if layer.bias is not None:
        types["bias"] = bias_of(layer.bias, f"{field_name}: QLayerConfig.bias")
    if not types:
        raise RecipeError(f"{field_name} must have a type, got an empty QLayerConfig; use None to leave layers float")
    return types


def _pattern(field_name: str, entry: Any, model: Any) -> str:
    """Return an entry as a name or a regular expression; a pair of nodes becomes the names of all nodes between."""
    if isinstance(entry, str):
        return entry
    if not isinstance(entry, tuple | list) or len(entry) != 2:
        raise RecipeError(f"{field_name} must hold names or pairs (first nodes, last nodes), got {entry!r}")
    if model is None:
        raise RecipeError(f"{field_name} can have pairs of nodes only with a model, got {entry!r}; use ModelQuantizer")
    nodes = list(model_source(model).load().graph)
    ends = [{node for name in _listed(names) for node in matching(nodes, name, field_name)} for names in entry]
    between = _reached(ends[0], _successors) & _reached(ends[1], _predecessors)
    if not between:
        raise RecipeError(
            f"{field_name} must name nodes joined by a path, got no path from {entry[0]!r} to {entry[1]!r}"
        )
    # One pattern instead of many names, because the prepare stage may remove some of the nodes.
    names = (name for node in between for name in (node.name, *(output.name for output in node.outputs)))
    return f"^({'|'.join(sorted(re.escape(name) for name in names if name))})$"


def _listed(names: str | Iterable[str]) -> tuple[str, ...]:
    return (names,) if isinstance(names, str) else tuple(names)


def _successors(node: ir.Node) -> Iterable[ir.Node]:
    return (use.node for output in node.outputs for use in output.uses())


def _predecessors(node: ir.Node) -> Iterable[ir.Node]:
    producers = (value.producer() for value in node.inputs if value is not None)
    return (producer for producer in producers if producer is not None)


def _reached(starts: set[ir.Node], step: Callable[[ir.Node], Iterable[ir.Node]]) -> set[ir.Node]:
    visited, queue = set(starts), deque(starts)
    while queue:
        fresh = set(step(queue.popleft())) - visited
        visited |= fresh
        queue.extend(fresh)
    return visited


_SELECTION = {
    "exclude": "QConfig.exclude",
    "exclude_subgraphs": "QConfig.exclude",
    "exclude_operators": "QConfig.layer_type_config[None]",
}
_PAIRS = ("specific_layer_config", "layer_type_config")
_LAYERS = (*_PAIRS, "global_config", "algo_config", "exclude")


@dataclass(init=False)
class QConfig(KnownAttributes):
    """A configuration by tensors, for `ModelQuantizer`.

    Cross-layer equalization runs only with a `CLEConfig`. If activations and weights both have power-of-two scales, the
    rules of AMD's integer NPU apply.

    Attributes:
        global_config: Types of the whole model.
        specific_layer_config: Types of single layers: names of nodes or of their outputs, regular expressions that
            start with ^, or pairs of first and last nodes. What a QLayerConfig does not set is as in ``global_config``.
        layer_type_config: Types of layers by operator type; the key None leaves these operator types float.
        exclude: Nodes that stay float: names, regular expressions that start with ^, or pairs of first and last nodes.
        algo_config: Algorithms.
        use_external_data_format: Store weights outside the model file.
        extra_options: Further options by name, given as keywords or in a dict of that name.

    Example:
        >>> from quantry.onnx import Int8Spec, Int16Spec, QConfig, QLayerConfig
        >>> wide = QLayerConfig(weight=Int16Spec())
        >>> config = QConfig(QLayerConfig(Int8Spec(), weight=Int8Spec()), specific_layer_config={wide: ["conv1"]})
        >>> config.to_job().recipe.plan.layers[0].match
        ('conv1',)
    """

    global_config: QLayerConfig
    specific_layer_config: Mapping[QLayerConfig | None, Iterable[Any]] = field(default_factory=dict)
    layer_type_config: Mapping[QLayerConfig | None, Iterable[str]] = field(default_factory=dict)
    exclude: list[Any] = field(default_factory=list)
    algo_config: list[AlgoConfig] = field(default_factory=list)
    use_external_data_format: bool = False
    extra_options: dict[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        global_config: QLayerConfig,
        specific_layer_config: Mapping[QLayerConfig | None, Iterable[Any]] | None = None,
        layer_type_config: Mapping[QLayerConfig | None, Iterable[str]] | None = None,
        exclude: Iterable[Any] | None = None,
        algo_config: Iterable[AlgoConfig] | None = None,
        use_external_data_format: bool = False,
        **kwargs: Any,
    ) -> None:
        self.global_config = global_config
        self.specific_layer_config = dict(specific_layer_config or {})
        self.layer_type_config = dict(layer_type_config or {})
        self.exclude = list(exclude or ())
        self.algo_config = list(algo_config or ())
        self.use_external_data_format = use_external_data_format
        nested = kwargs.pop("extra_options", None) or {}
        self.extra_options = {**nested, **kwargs}

    @staticmethod
    def get_default_config(config_name: str) -> Config:
        """Return a copy of a named configuration; change it as you like.

        As in AMD Quark it is a `Config`, whose ``global_quant_config`` holds the settings. The same configuration as a
        `QConfig` is ``quantry.onnx.XINT8_QCONFIG``, for example.

        Args:
            config_name: Its name, such as "XINT8" or "S8S8_AAWS".

        Raises:
            RecipeError: There is no such name; the message suggests the nearest spelling.

        Example:
            >>> QConfig.get_default_config("XINT8").global_quant_config.enable_npu_cnn
            True
        """
        from quantry.onnx.presets import get_default_config  # Imported here because presets imports QConfig.

        return Config(get_default_config(config_name))

    def to_dict(self) -> dict[str, Any]:
        """Return the configuration as plain data for `from_dict`.

        Raises:
            RecipeError: An option holds something that is not data, such as a function; the message names it.
        """
        values = {entry.name: getattr(self, entry.name) for entry in fields(self)}
        for name in _PAIRS:
            values[name] = [[layer, list(entries)] for layer, entries in values[name].items()]
        return {name: to_plain(value, f"QConfig.{name}") for name, value in values.items()}

    @classmethod
    def from_dict(cls, d: Mapping[str, Any]) -> Self:
        """Return the configuration that `to_dict` was called on.

        Args:
            d: Plain data.

        Raises:
            RecipeError: A name is unknown; the message suggests the nearest spelling.

        Example:
            >>> config = QConfig(QLayerConfig())
            >>> QConfig.from_dict(config.to_dict()) == config
            True
        """
        require_known("QConfig.from_dict", d, field_names(cls), "be given fields")
        values = {name: from_plain(value, f"QConfig.{name}") for name, value in d.items() if name not in _LAYERS}
        if "global_config" in d:
            values["global_config"] = layer_of(d["global_config"], "QConfig.global_config")
        values["algo_config"] = [algorithm_of(entry, "QConfig.algo_config") for entry in d.get("algo_config") or ()]
        for name in _PAIRS:
            pairs = d.get(name) or ()
            values[name] = {layer_of(layer, f"QConfig.{name}"): _names(entries) for layer, entries in pairs}
        values["exclude"] = _names(d.get("exclude") or ())
        return cls(**values)

    def to_job(self, algorithms: Iterable[AlgoConfig] = (), model: Any = None) -> Job:
        """Translate the configuration.

        Args:
            algorithms: Algorithms in addition to ``algo_config``.
            model: The float model, in which pairs of first and last nodes are looked up.

        Raises:
            RecipeError: Something is not supported; the message names the field.
        """
        options = checked_options(self.extra_options)
        draft = self._selected(_draft_of(self.global_config, layers := self._layers(model)))
        all_algorithms = _checked_algorithms((*self.algo_config, *algorithms))
        draft = replace(draft, external_data=self.use_external_data_format, plan=replace(draft.plan, layers=layers))
        for algorithm in all_algorithms:
            for switch in algorithm.switch:
                draft = FIELDS[switch].applied(draft, value=True, option=type(algorithm).__name__)
            options = {**algorithm.options(), **options}  # Explicit options override those of an algorithm.
        # Fields before options, as in a QuantizationConfig: options refine what fields set.
        for key, value in options.items():
            spelling = ROWS[key].spelling_of
            if spelling:
                draft = FIELDS[spelling].applied(draft, value, key)
        job = finished(draft, options, options, by_layer=True)
        return replace(job, selection={**job.selection, **_SELECTION})

    def _layers(self, model: Any) -> tuple[LayerTypes, ...]:
        types: dict[QLayerConfig | None, Iterable[str]] = {
            layer: names for layer, names in self.layer_type_config.items() if layer is not None
        }
        return (
            *layer_entries("QConfig.layer_type_config", types, model, operators=True),
            *layer_entries("QConfig.specific_layer_config", self.specific_layer_config, model),
        )

    def _selected(self, draft: RecipeDraft) -> RecipeDraft:
        names = tuple(entry for entry in self.exclude if isinstance(entry, str))
        pairs = tuple(_subgraph(entry) for entry in self.exclude if not isinstance(entry, str))
        floats = tuple(self.layer_type_config.get(None, ()))
        selection = Selection(exclude=names, exclude_operators=floats, exclude_subgraphs=pairs)
        return replace(draft, plan=replace(draft.plan, selection=selection))


def _subgraph(entry: Any) -> Subgraph:
    if not isinstance(entry, tuple | list) or len(entry) != 2:
        raise RecipeError(f"QConfig.exclude must hold names or pairs (first nodes, last nodes), got {entry!r}")
    starts, ends = ((names,) if isinstance(names, str) else tuple(names) for names in entry)
    return Subgraph(starts, ends)


def _checked_algorithms(algorithms: tuple[Any, ...]) -> tuple[AlgoConfig, ...]:
    names_by_key: dict[str, str] = {}
    for algorithm in algorithms:
        if not isinstance(algorithm, AlgoConfig):
            raise RecipeError(
                f"QConfig.algo_config must hold algorithms such as CLEConfig() or AdaRoundConfig(), got {algorithm!r}"
            )
        name = type(algorithm).__name__
        for key in algorithm.switch or algorithm.options():
            if key in names_by_key:
                raise RecipeError(
                    f"QConfig.algo_config must hold at most one algorithm for {key}, got {names_by_key[key]} and {name}"
                )
            names_by_key[key] = name
    return algorithms


def _draft_of(layer: QLayerConfig, layers: tuple[LayerTypes, ...]) -> RecipeDraft:
    activations, weights = layer.activations(), layer.weight or layer.activations()
    activation = activations.to_spec("QLayerConfig.input_tensors")
    weight = weights.to_spec("QLayerConfig.weight")
    method = activations.to_method("QLayerConfig.input_tensors")
    weight_method = weights.to_method("QLayerConfig.weight")
    if not isinstance(weight.scale, PowerOfTwoScale) and not isinstance(weight_method, MinMSE):
        # Weights are fully known: percentiles and divergences are for values that are only sampled.
        weight_method = MinMax()
    draft = RecipeDraft(summary=True)
    plan = replace(draft.plan, activation=activation, weight=weight)
    draft = replace(draft, plan=plan, scale=replace(draft.scale, activation=method, weight=weight_method))
    if layer.bias is not None and not isinstance(bias := bias_of(layer.bias, "QLayerConfig.bias"), DerivedBias):
        draft = replace(draft, bias=bias)
    singles = (spec for entry in layers for spec in (entry.activation, entry.output, entry.weight) if spec is not None)
    if all(_is_narrow(spec) for spec in (activation, weight, *singles)):
        draft = replace(draft, format=Qdq())
    else:
        draft = replace(draft, format=None, prepare=replace(draft.prepare, npu=WRITTEN_DIFFERENTLY))
    if all(_is_narrow(spec) and isinstance(spec.scale, PowerOfTwoScale) for spec in (activation, weight)):
        scale = replace(draft.scale, npu=NpuLimits())
        return replace(draft, npu=True, scale=scale, prepare=replace(draft.prepare, npu=NpuConversions()))
    return draft


def _is_narrow(spec: TensorSpec) -> bool:
    return spec.dtype.is_integer and spec.dtype.bits <= 8
