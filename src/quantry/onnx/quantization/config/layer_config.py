"""Configurations by tensor and layer, as AMD Quark 0.10 and later spell them."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from quantry.errors import RecipeError
from quantry.onnx.enums import CalibMethod, QuantGranularity, ScaleType, own_member
from quantry.onnx.methods import method_of
from quantry.onnx.options import FIELDS, ROWS, Draft
from quantry.onnx.options.npu import WRITTEN_DIFFERENTLY
from quantry.onnx.quantization.config.config import Config
from quantry.onnx.quantization.config.custom_config import get_default_config
from quantry.onnx.quantization.config.known_names import KnownArguments, KnownAttributes
from quantry.onnx.translate import Job, checked_options, finished
from quantry.recipe import (
    CrossLayer,
    DataType,
    EqualizeOptions,
    FloatScale,
    Method,
    MinMax,
    MinMSE,
    NpuConversions,
    NpuLimits,
    OwnBias,
    PerBlock,
    PerChannel,
    PerTensor,
    PowerOfTwoScale,
    Qdq,
    ScaleKind,
    Selection,
    Subgraph,
    TensorSpec,
)

_KINDS: dict[enum.Enum, ScaleKind] = {ScaleType.Float32: FloatScale(), ScaleType.PowerOf2: PowerOfTwoScale()}

_SELECTION = {
    "exclude": "QConfig.exclude",
    "exclude_subgraphs": "QConfig.exclude",
    "exclude_operators": "QConfig.layer_type_config[None]",
}


@dataclass(frozen=True)
class QTensorConfig(KnownArguments):
    """What one kind of tensor is quantized to.

    Attributes:
        symmetric: Whether the zero point is fixed at the centre of the type.
        scale_type: Kind of scale.
        calibration_method: How its range is found.
        quant_granularity: How many scales it has.
        data_type: Its type, as `quantry.recipe.DataType` or by that name.
    """

    symmetric: bool = True
    scale_type: ScaleType = ScaleType.Float32
    calibration_method: CalibMethod = CalibMethod.MinMax
    quant_granularity: QuantGranularity = QuantGranularity.Tensor
    data_type: DataType | str = DataType.INT8

    def to_spec(self, where: str) -> TensorSpec:
        """Return the specification.

        Args:
            where: The field, for messages.

        Raises:
            RecipeError: Something cannot be had; the message names the field.
        """
        scale = own_member(self.scale_type, (ScaleType,), f"{where}.scale_type")
        if scale not in _KINDS:
            raise RecipeError(
                f"{where}.scale_type cannot be {scale}: scales are float32 or powers of two, not M / 2**N; the nearest "
                "is ScaleType.PowerOf2"
            )
        granularity = own_member(self.quant_granularity, (QuantGranularity,), f"{where}.quant_granularity")
        if granularity is QuantGranularity.Group:
            raise RecipeError(
                f"{where}.quant_granularity cannot be {granularity}: integers have one scale for a tensor or a "
                "channel; use QuantGranularity.Channel, or a block format such as BFP16Spec()"
            )
        dtype = DataType(self.data_type)
        if dtype.is_block:
            return TensorSpec(dtype, granularity=PerBlock())
        several = granularity is QuantGranularity.Channel
        kind = _KINDS[scale] if dtype.is_integer else FloatScale()
        symmetric = self.symmetric or not dtype.is_integer
        return TensorSpec(dtype, symmetric, PerChannel() if several else PerTensor(), kind)

    def to_method(self, where: str) -> Method:
        """Return the calibration method.

        Args:
            where: The field, for messages.

        Raises:
            RecipeError: There is no such method.
        """
        place = f"{where}.calibration_method"
        return method_of(own_member(self.calibration_method, (CalibMethod,), place), place)


@dataclass(frozen=True)
class Int8Spec(QTensorConfig):
    """int8, symmetric, Percentile."""

    calibration_method: CalibMethod = CalibMethod.Percentile


@dataclass(frozen=True)
class UInt8Spec(Int8Spec):
    """uint8, asymmetric, Percentile."""

    symmetric: bool = False
    data_type: DataType | str = DataType.UINT8


@dataclass(frozen=True)
class XInt8Spec(QTensorConfig):
    """int8, symmetric, power-of-two scale, MinMSE: what AMD's integer NPU takes."""

    scale_type: ScaleType = ScaleType.PowerOf2
    calibration_method: CalibMethod = CalibMethod.MinMSE


@dataclass(frozen=True)
class Int16Spec(Int8Spec):
    """int16, symmetric, Percentile."""

    data_type: DataType | str = DataType.INT16


@dataclass(frozen=True)
class UInt16Spec(UInt8Spec):
    """uint16, asymmetric, Percentile."""

    data_type: DataType | str = DataType.UINT16


@dataclass(frozen=True)
class Int32Spec(Int8Spec):
    """int32, symmetric, Percentile."""

    data_type: DataType | str = DataType.INT32


@dataclass(frozen=True)
class UInt32Spec(UInt8Spec):
    """uint32, asymmetric, Percentile."""

    data_type: DataType | str = DataType.UINT32


@dataclass(frozen=True)
class Float16Spec(QTensorConfig):
    """float16."""

    data_type: DataType | str = DataType.FLOAT16


@dataclass(frozen=True)
class BFloat16Spec(QTensorConfig):
    """bfloat16."""

    data_type: DataType | str = DataType.BFLOAT16


@dataclass(frozen=True)
class BFP16Spec(QTensorConfig):
    """BFP16: blocks of 8 values with one exponent."""

    data_type: DataType | str = DataType.BFP16


@dataclass(frozen=True)
class MX4Spec(QTensorConfig):
    """MX4."""

    data_type: DataType | str = DataType.MX4


@dataclass(frozen=True)
class MX6Spec(QTensorConfig):
    """MX6."""

    data_type: DataType | str = DataType.MX6


@dataclass(frozen=True)
class MX9Spec(QTensorConfig):
    """MX9."""

    data_type: DataType | str = DataType.MX9


@dataclass(frozen=True)
class MXFP8E5M2Spec(QTensorConfig):
    """MXFP8 E5M2."""

    data_type: DataType | str = DataType.MXFP8E5M2


@dataclass(frozen=True)
class MXFP8E4M3Spec(QTensorConfig):
    """MXFP8 E4M3."""

    data_type: DataType | str = DataType.MXFP8E4M3


@dataclass(frozen=True)
class MXFP6E3M2Spec(QTensorConfig):
    """MXFP6 E3M2."""

    data_type: DataType | str = DataType.MXFP6E3M2


@dataclass(frozen=True)
class MXFP6E2M3Spec(QTensorConfig):
    """MXFP6 E2M3."""

    data_type: DataType | str = DataType.MXFP6E2M3


@dataclass(frozen=True)
class MXFP4E2M1Spec(QTensorConfig):
    """MXFP4 E2M1."""

    data_type: DataType | str = DataType.MXFP4E2M1


@dataclass(frozen=True)
class MXInt8Spec(QTensorConfig):
    """MXINT8."""

    data_type: DataType | str = DataType.MXINT8


@dataclass(frozen=True)
class QLayerConfig(KnownArguments):
    """What the tensors of a layer are quantized to.

    Attributes:
        input_tensors: Activations.
        activation: Another name of ``input_tensors``.
        weight: Weights; None takes what activations have.
        bias: Biases; None takes what the weight's type suggests.
        output_tensors: Activations again; where given, the same as ``input_tensors``.
    """

    input_tensors: QTensorConfig | None = None
    activation: QTensorConfig | None = None
    weight: QTensorConfig | None = None
    bias: QTensorConfig | None = None
    output_tensors: QTensorConfig | None = None

    def activations(self) -> QTensorConfig:
        """Return what activations are quantized to.

        Raises:
            RecipeError: Nothing says it, or two fields say different things.
        """
        given = [spec for spec in (self.input_tensors, self.activation, self.output_tensors) if spec is not None]
        if not given:
            raise RecipeError("QLayerConfig.input_tensors must say what activations become, got None")
        if any(spec != given[0] for spec in given):
            raise RecipeError(
                "QLayerConfig.output_tensors must be what input_tensors are, because a tensor is the output of one "
                f"layer and the input of the next; got {self.output_tensors} beside {given[0]}"
            )
        return given[0]


@dataclass(frozen=True)
class CLEConfig(KnownArguments):
    """Cross-layer equalization.

    Attributes:
        cle_steps: Sweeps; -1 repeats until the weights rest.
        cle_scale_append_bias: Let a bias count in the range of its channel.
        cle_scale_use_threshold: Leave channels with little weight alone.
        cle_weight_threshold: What is little.
        cle_total_layer_diff_threshold: The change that counts as rest.
    """

    cle_steps: int = 1
    cle_scale_append_bias: bool = True
    cle_scale_use_threshold: bool = True
    cle_weight_threshold: float = 0.5
    cle_total_layer_diff_threshold: float = 1.9e-7


@dataclass(init=False)
class QConfig(KnownAttributes):
    """A configuration by tensors, for `ModelQuantizer`.

    Unlike in `Config`, cross-layer equalization runs only with a `CLEConfig`. Both specifications with power-of-two
    scales ask for the rules of AMD's integer NPU.

    Attributes:
        global_config: What the tensors of all layers become.
        specific_layer_config: Other types for single layers; refused, as a model has one type of each so far.
        layer_type_config: ``{None: [operator types]}`` leaves those float; other types for some are refused.
        exclude: Nodes that stay float: names, patterns that start with ^, pairs of first and last nodes.
        algo_config: Algorithms.
        use_external_data_format: Write weights beside the model.
        extra_options: Further options by name, given as keywords or in a dict of that name.
    """

    global_config: QLayerConfig
    specific_layer_config: Mapping[QLayerConfig, Any] = field(default_factory=dict)
    layer_type_config: Mapping[QLayerConfig | None, Iterable[str]] = field(default_factory=dict)
    exclude: list[Any] = field(default_factory=list)
    algo_config: list[CLEConfig] = field(default_factory=list)
    use_external_data_format: bool = False
    extra_options: dict[str, Any] = field(default_factory=dict)

    def __init__(
        self,
        global_config: QLayerConfig,
        specific_layer_config: Mapping[QLayerConfig, Any] | None = None,
        layer_type_config: Mapping[QLayerConfig | None, Iterable[str]] | None = None,
        exclude: Iterable[Any] | None = None,
        algo_config: Iterable[CLEConfig] | None = None,
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
        """Return a copy of a named configuration, to be changed as one likes.

        As in AMD Quark it is a `Config`, whose ``global_quant_config`` holds the settings.

        Args:
            config_name: Its name, such as "XINT8" or "S8S8_AAWS".

        Raises:
            RecipeError: There is no such name; the message has the nearest.

        Example:
            >>> QConfig.get_default_config("XINT8").global_quant_config.enable_npu_cnn
            True
        """
        return Config(get_default_config(config_name))

    def to_job(self, algorithms: tuple[CLEConfig, ...] = ()) -> Job:
        """Return what the configuration asks for.

        Args:
            algorithms: Algorithms on top of ``algo_config``.

        Raises:
            RecipeError: Something cannot be had; the message names the field.
        """
        options = checked_options(self.extra_options)
        draft = self._selected(_draft_of(self.global_config))
        draft = _with_algorithms(draft, (*self.algo_config, *algorithms))
        draft = replace(draft, external_data=self.use_external_data_format)
        for key, value in options.items():
            spelling = ROWS[key].spelling_of
            if spelling:
                draft = FIELDS[spelling].applied(draft, value, key)
        job = finished(draft, options)
        return replace(job, selection={**job.selection, **_SELECTION})

    def _selected(self, draft: Draft) -> Draft:
        for name, layers in (
            ("specific_layer_config", self.specific_layer_config),
            ("layer_type_config", {key: value for key, value in self.layer_type_config.items() if key is not None}),
        ):
            if layers:
                raise RecipeError(
                    f"QConfig.{name} cannot give single layers other types: a model has one type of activation and "
                    "one of weight so far; leave layers float with exclude or layer_type_config={None: [types]}"
                )
        names = tuple(entry for entry in self.exclude if isinstance(entry, str))
        pairs = tuple(_subgraph(entry) for entry in self.exclude if not isinstance(entry, str))
        floats = tuple(self.layer_type_config.get(None, ()))
        selection = Selection(exclude=names, exclude_operators=floats, exclude_subgraphs=pairs)
        return replace(draft, plan=replace(draft.plan, selection=selection))


def _subgraph(entry: Any) -> Subgraph:
    if not isinstance(entry, tuple | list) or len(entry) != 2:
        raise RecipeError(f"QConfig.exclude must hold names or pairs (first nodes, last nodes), got {entry!r}")
    starts, ends = ((part,) if isinstance(part, str) else tuple(part) for part in entry)
    return Subgraph(starts, ends)


def _with_algorithms(draft: Draft, algorithms: tuple[Any, ...]) -> Draft:
    for algorithm in algorithms:
        if not isinstance(algorithm, CLEConfig):
            raise RecipeError(
                f"QConfig.algo_config must hold CLEConfig() only, the one algorithm there is so far, got {algorithm!r}"
            )
        cross_layer = CrossLayer(
            steps=algorithm.cle_steps,
            include_bias=algorithm.cle_scale_append_bias,
            use_threshold=algorithm.cle_scale_use_threshold,
            weight_threshold=algorithm.cle_weight_threshold,
            convergence=algorithm.cle_total_layer_diff_threshold,
        )
        draft = replace(draft, equalize=EqualizeOptions(cross_layer))
    return draft


def _draft_of(layer: QLayerConfig) -> Draft:
    activations, weights = layer.activations(), layer.weight or layer.activations()
    activation = activations.to_spec("QLayerConfig.input_tensors")
    weight = weights.to_spec("QLayerConfig.weight")
    method = activations.to_method("QLayerConfig.input_tensors")
    weight_method = weights.to_method("QLayerConfig.weight")
    if not isinstance(weight.scale, PowerOfTwoScale) and not isinstance(weight_method, MinMSE):
        # Weights are known as they are: percentiles and divergences are for what was only sampled.
        weight_method = MinMax()
    draft = Draft(summary=True)
    plan = replace(draft.plan, activation=activation, weight=weight)
    draft = replace(draft, plan=plan, scale=replace(draft.scale, activation=method, weight=weight_method))
    draft = _with_bias(draft, layer.bias)
    if not all(spec.dtype.is_integer and spec.dtype.bits <= 8 for spec in (activation, weight)):
        return replace(draft, format=None, prepare=replace(draft.prepare, npu=WRITTEN_DIFFERENTLY))
    draft = replace(draft, format=Qdq())
    if isinstance(activation.scale, PowerOfTwoScale) and isinstance(weight.scale, PowerOfTwoScale):
        scale = replace(draft.scale, npu=NpuLimits())
        return replace(draft, npu=True, scale=scale, prepare=replace(draft.prepare, npu=NpuConversions()))
    return draft


def _with_bias(draft: Draft, bias: QTensorConfig | None) -> Draft:
    if bias is None:
        return draft
    spec = bias.to_spec("QLayerConfig.bias")
    if spec.dtype == DataType.INT32 and isinstance(spec.scale, FloatScale):
        return draft
    return replace(draft, bias=OwnBias(spec))
