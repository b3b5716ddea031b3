"""Configurations of Quark for PyTorch: `QTensorConfig`, `QLayerConfig` and `QConfig`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from quantry.errors import RecipeError, nearest_spelling
from quantry.recipe import (
    AdaQuant,
    AdaRound,
    BiasCorrection,
    Brecq,
    ChannelGroups,
    CrossLayer,
    DataType,
    Distill,
    FloatScale,
    Gptq,
    Granularity,
    Method,
    PerChannel,
    PerTensor,
    PowerOfTwoScale,
    SmoothQuant,
    TensorSpec,
    Tqt,
    TuneStep,
)
from quantry.recipe.checked import KnownArguments
from quantry.recipe.codec import decode
from quantry.torch.enums import (
    DATA_TYPES,
    DeviceType,
    Dtype,
    LSQSpec,
    ObserverBase,
    QSchemeType,
    QuantFlow,
    QuantizationMode,
    RoundType,
    ScaleType,
    TQTSpec,
    ZeroPointType,
    check_member,
    observer_named,
)
from quantry.torch.plain_data import PlainData, member_of

_MANDATORY = {
    "observer_cls": "PerTensorMinMaxObserver",
    "is_dynamic": "False",
    "qscheme": "QSchemeType.per_tensor",
    "symmetric": "True",
    "round_method": "RoundType.half_even",
    "scale_type": "ScaleType.float",
}
"""Fields that integers need, as in AMD Quark, each with a valid value for messages."""
_UNUSED = {
    "group_size": "ONNX has no scales per group",
    "block_size": "ONNX has no scales per block",
    "scale_format": "scales are float32 in ONNX",
    "scale_calculation_mode": "it is for block formats",
    "mx_element_dtype": "it is for block formats",
    "is_scale_quant": "ONNX does not quantize scales",
    "enable_buffer_reuse": "it is for block formats",
}
_DEFAULT_NUMEL = 4_194_304


def _no_dtype() -> Dtype:
    raise RecipeError(
        "QTensorConfig.dtype must be set, got none; give for example "
        "QTensorConfig(dtype=Dtype.int8, observer_cls=PerTensorMinMaxObserver, is_dynamic=False, "
        "qscheme=QSchemeType.per_tensor, symmetric=True, round_method=RoundType.half_even, scale_type=ScaleType.float)"
    )


@dataclass(frozen=True)
class QTensorConfig(PlainData, KnownArguments):
    """How one kind of tensor is quantized; older scripts call it ``QuantizationSpec``.

    Attributes:
        dtype: The data type; required.
        observer_cls: The observer, which chooses the calibration method.
        is_dynamic: Whether scales are computed at run time; must be False.
        qscheme: Number of scales.
        ch_axis: Channel axis of ``per_channel``.
        group_size: Must be None.
        block_size: Must be None.
        symmetric: Whether the zero point is fixed.
        round_method: How halves are rounded.
        scale_type: ``pof2`` for power-of-two scales; observers named PowOf2 have them with any value.
        scale_format: Must be None.
        scale_calculation_mode: Must be None.
        qat_spec: `TQTSpec` or `LSQSpec` for scales that training learns, or None.
        mx_element_dtype: Must be None.
        zero_point_type: Type of the zero point.
        is_scale_quant: Must be False.
        enable_buffer_reuse: Must be False.
        max_input_numel: Must have its default; observers have no such limit.
    """

    dtype: Dtype = field(default_factory=_no_dtype)
    observer_cls: type[ObserverBase] | None = None
    is_dynamic: bool | None = None
    qscheme: QSchemeType | None = None
    ch_axis: int | None = None
    group_size: int | None = None
    block_size: int | None = None
    symmetric: bool | None = None
    round_method: RoundType | None = None
    scale_type: ScaleType | None = None
    scale_format: str | None = None
    scale_calculation_mode: str | None = None
    qat_spec: TQTSpec | LSQSpec | None = None
    mx_element_dtype: Dtype | None = None
    zero_point_type: ZeroPointType = ZeroPointType.int32
    is_scale_quant: bool = False
    enable_buffer_reuse: bool = False
    max_input_numel: int = _DEFAULT_NUMEL

    omitted: ClassVar[tuple[str, ...]] = ("qat_spec",)
    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {
        "dtype": member_of(Dtype),
        "mx_element_dtype": member_of(Dtype),
        "qscheme": member_of(QSchemeType),
        "round_method": member_of(RoundType),
        "scale_type": member_of(ScaleType),
        "zero_point_type": member_of(ZeroPointType),
        "observer_cls": observer_named,
    }

    def __post_init__(self) -> None:
        check_member(self.dtype, Dtype, "QTensorConfig.dtype")
        check_member(self.zero_point_type, ZeroPointType, "QTensorConfig.zero_point_type")
        for name, reason in _UNUSED.items():
            if getattr(self, name):
                raise RecipeError(f"QTensorConfig.{name} must be omitted, got {getattr(self, name)!r}: {reason}")
        if self.max_input_numel != _DEFAULT_NUMEL:
            raise RecipeError(
                f"QTensorConfig.max_input_numel must be omitted, got {self.max_input_numel!r}: there is no limit"
            )
        if self.is_dynamic:
            raise RecipeError(
                "QTensorConfig.is_dynamic must be False, because NPUs do not compute scales at run time; got "
                f"{self.is_dynamic!r}; for CPUs use quantry.onnx, which has dynamic quantization"
            )
        if DATA_TYPES[self.dtype].is_integer:
            self._check_integer()

    def _check_integer(self) -> None:
        missing = [name for name in _MANDATORY if getattr(self, name) is None]
        if missing:
            examples = ", ".join(f"{name}={self._example(name)}" for name in missing)
            raise RecipeError(
                f"QTensorConfig of {self.dtype.name} must have a value for every field of its grid, got none for "
                f"{len(missing)} fields; give for example {examples}"
            )
        check_member(self.qscheme, QSchemeType, "QTensorConfig.qscheme")
        check_member(self.round_method, RoundType, "QTensorConfig.round_method")
        check_member(self.scale_type, ScaleType, "QTensorConfig.scale_type")
        self._check_observer()
        if not isinstance(self.symmetric, bool):
            raise RecipeError(f"QTensorConfig.symmetric must be True or False, got {self.symmetric!r}")
        if self.qscheme == QSchemeType.per_channel and not isinstance(self.ch_axis, int):
            raise RecipeError(f"QTensorConfig.ch_axis must be an axis with per_channel, got {self.ch_axis!r}")
        if self.qscheme == QSchemeType.per_tensor and self.ch_axis is not None:
            raise RecipeError(f"QTensorConfig.ch_axis must be omitted with per_tensor, got {self.ch_axis!r}")

    def _example(self, name: str) -> str:
        """Return a valid value for a missing field that fits the other fields."""
        if name == "observer_cls" and self.qscheme == QSchemeType.per_channel:
            return "PerChannelMinMaxObserver"
        if name == "qscheme" and getattr(self.observer_cls, "scheme", None) == QSchemeType.per_channel:
            return "QSchemeType.per_channel"
        return _MANDATORY[name]

    def _check_observer(self) -> None:
        observer: Any = self.observer_cls
        if not (isinstance(observer, type) and issubclass(observer, ObserverBase)):
            raise RecipeError(
                f"QTensorConfig.observer_cls must be an observer of quantry.torch, got {observer!r}, such as "
                "PerTensorPowOf2MinMSEObserver"
            )
        if observer.refusal:
            raise RecipeError(f"QTensorConfig.observer_cls cannot be {observer.__name__}: {observer.refusal}")
        if observer.scheme is not None and observer.scheme != self.qscheme:
            assert self.qscheme is not None
            raise RecipeError(
                f"QTensorConfig.observer_cls must fit the qscheme {self.qscheme.name}, got {observer.__name__}, which "
                f"is for {observer.scheme.name}"
            )
        if self.qat_spec is not None and not isinstance(self.qat_spec, TQTSpec | LSQSpec):
            raise RecipeError(f"QTensorConfig.qat_spec must be TQTSpec(), LSQSpec() or None, got {self.qat_spec!r}")

    @property
    def learned(self) -> str:
        """How training learns the scale: "tqt", "lsq" or empty."""
        if self.qat_spec is not None:
            return "tqt" if isinstance(self.qat_spec, TQTSpec) else "lsq"
        return self.observer_cls.learned if self.observer_cls is not None else ""

    @property
    def method(self) -> Method | None:
        """The calibration method; None for types without a scale."""
        if isinstance(self.qat_spec, TQTSpec) and self.qat_spec.method is not None and self.is_integer:
            return self.qat_spec.method
        return self.observer_cls.method if self.observer_cls is not None and self.is_integer else None

    @property
    def is_integer(self) -> bool:
        """Whether the type has a scale."""
        return DATA_TYPES[self.dtype].is_integer

    def tensor_spec(self) -> TensorSpec:
        """Return the recipe's specification."""
        dtype = DATA_TYPES[self.dtype]
        if not dtype.is_integer:
            return TensorSpec(dtype)
        assert self.observer_cls is not None
        power_of_two = self.observer_cls.power_of_two or self.scale_type == ScaleType.pof2 or self.learned == "tqt"
        granularity: Granularity = PerTensor()
        if self.qscheme == QSchemeType.per_channel:
            granularity = PerChannel(self.ch_axis)
        scale = PowerOfTwoScale() if power_of_two else FloatScale()
        return TensorSpec(dtype, bool(self.symmetric), granularity, scale)

    @property
    def is_accumulator(self) -> bool:
        """Whether it is an int32 bias with the scale of the accumulator."""
        return DATA_TYPES[self.dtype] == DataType.INT32


QuantizationSpec = QTensorConfig
"""The older name of `QTensorConfig`."""


EQUALIZATIONS: Mapping[type, str] = {
    CrossLayer: "cross_layer",
    SmoothQuant: "smooth",
    ChannelGroups: "groups",
}
"""Algorithms that run before calibration, and their fields in ``EqualizeOptions``."""

_ALGORITHMS: Mapping[str, type] = {
    "cle": CrossLayer,
    "smoothquant": SmoothQuant,
    "adaround": AdaRound,
    "adaquant": AdaQuant,
    "brecq": Brecq,
    "tqt": Tqt,
    "gptq": Gptq,
    "bias_correction": BiasCorrection,
    "distill": Distill,
}
_LANGUAGE_MODELS = {
    "kv_cache_quant_config": {},
    "kv_cache_group": [],
    "min_kv_scale": 0.0,
    "kv_cache_post_rope": False,
    "shared_scale_groups": [],
    "softmax_quant_spec": None,
    "gpu_resident_blocks": 0,
    "sync_moe_expert_input_amax": False,
}


@dataclass(frozen=True)
class QLayerConfig(PlainData, KnownArguments):
    """How the tensors of a layer are quantized; older scripts call it ``QuantizationConfig``.

    Attributes:
        input_tensors: Inputs.
        output_tensors: Outputs; must equal the inputs, because the output of one layer is the input of the next.
        weight: The weight.
        bias: The bias; int32 takes the scale of the accumulator, None keeps it float.
        target_device: ``IPU`` also replaces operators by what the NPU computes instead, for example Sigmoid by
            HardSigmoid. This changes the function of the model, so train afterwards. None and ``CPU`` keep them.
    """

    input_tensors: QTensorConfig | None = None
    output_tensors: QTensorConfig | None = None
    weight: QTensorConfig | None = None
    bias: QTensorConfig | None = None
    target_device: DeviceType | None = None

    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {
        **dict.fromkeys(("input_tensors", "output_tensors", "weight", "bias"), QTensorConfig.from_dict),
        "target_device": member_of(DeviceType),
    }

    def __post_init__(self) -> None:
        for name in ("input_tensors", "output_tensors", "weight", "bias"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, QTensorConfig):
                hint = "; lists of specifications are not supported" if isinstance(value, list) else ""
                raise RecipeError(f"QLayerConfig.{name} must be a QTensorConfig, got {type(value).__name__}{hint}")
        if self.target_device is not None:
            check_member(self.target_device, DeviceType, "QLayerConfig.target_device")
        first, second = self.input_tensors, self.output_tensors
        if first is not None and second is not None and first != second:
            raise RecipeError(
                "QLayerConfig.output_tensors must equal input_tensors, because the output of one layer is the input of "
                "the next; got two that differ; set the types of single layers with layer_quant_config"
            )

    @property
    def activation(self) -> QTensorConfig | None:
        """The specification of activations."""
        return self.input_tensors or self.output_tensors


QuantizationConfig = QLayerConfig
"""The older name of `QLayerConfig`."""


def _no_global_config() -> QLayerConfig:
    raise RecipeError(
        "QConfig.global_quant_config must be set, got none; give for example "
        "QConfig(QLayerConfig(input_tensors=spec, output_tensors=spec, weight=spec, bias=spec), exclude=[...]) with a "
        "QTensorConfig as spec"
    )


def _layers(configurations: Mapping[str, Any]) -> dict[str, QLayerConfig | None]:
    """Return configurations of layers from plain data."""
    if not isinstance(configurations, Mapping):
        raise RecipeError(f"configurations of layers must be a dictionary, got {configurations!r}")
    return {name: None if layer is None else QLayerConfig.from_dict(layer) for name, layer in configurations.items()}


@dataclass(frozen=True)
class QConfig(PlainData, KnownArguments):
    """How a model is quantized; older scripts call it ``Config``.

    Attributes:
        global_quant_config: Types of all layers; required.
        exclude: What stays float: names of submodules, nodes or tensors of the captured graph. ``*`` matches anything;
            a name that starts with ``^`` is a regular expression.
        algo_config: Algorithms, as values of ``quantry.recipe`` such as ``SmoothQuant()`` and ``AdaRound()``, or by
            name. Equalizations run before calibration, the others after it, in order.
        log_severity_level: Must have its default; use Python's logging.
        version: Version of AMD's format; any value.
        layer_type_quant_config: Types of layers by module class or class name; they override the global ones.
        layer_quant_config: Types of layers by name, as in `exclude`; None leaves a layer float.
        kv_cache_quant_config: Must have its default, like the other fields for language models.
        kv_cache_group: Must have its default.
        min_kv_scale: Must have its default.
        kv_cache_post_rope: Must have its default.
        shared_scale_groups: Must have its default.
        softmax_quant_spec: Must have its default.
        quant_mode: Must be ``fx_graph_mode``.
        quant_flow: Must be ``standard``.
        gpu_resident_blocks: Must have its default.
        sync_moe_expert_input_amax: Must have its default.
        keep_prequantized_layers: Must have its default.
    """

    global_quant_config: QLayerConfig = field(default_factory=_no_global_config)
    exclude: Sequence[str] | None = ()
    algo_config: Sequence[Any] | None = None
    log_severity_level: int = 1
    version: str = "0.13"
    layer_type_quant_config: Mapping[Any, QLayerConfig | None] = field(default_factory=dict)
    layer_quant_config: Mapping[str, QLayerConfig | None] = field(default_factory=dict)
    kv_cache_quant_config: Mapping[str, Any] = field(default_factory=dict)
    kv_cache_group: Sequence[str] = field(default_factory=list)
    min_kv_scale: float = 0.0
    kv_cache_post_rope: bool = False
    shared_scale_groups: Sequence[Any] = field(default_factory=list)
    softmax_quant_spec: QTensorConfig | None = None
    quant_mode: QuantizationMode = QuantizationMode.fx_graph_mode
    quant_flow: QuantFlow = QuantFlow.standard
    gpu_resident_blocks: int = 0
    sync_moe_expert_input_amax: bool = False
    keep_prequantized_layers: bool = True

    # AMD's form has what is needed to read a model again, not how to compute it.
    omitted: ClassVar[tuple[str, ...]] = (
        *("log_severity_level", "kv_cache_group", "min_kv_scale", "shared_scale_groups", "quant_flow"),
        *("gpu_resident_blocks", "sync_moe_expert_input_amax", "keep_prequantized_layers"),
    )
    added: ClassVar[Mapping[str, Any]] = {"quant_method": "quark"}
    readers: ClassVar[Mapping[str, Callable[[Any], Any]]] = {
        "global_quant_config": QLayerConfig.from_dict,
        "layer_type_quant_config": _layers,
        "layer_quant_config": _layers,
        "softmax_quant_spec": QTensorConfig.from_dict,
        "quant_mode": member_of(QuantizationMode),
        "algo_config": lambda entries: [_stored_algorithm(entry) for entry in _listed(entries)],
    }

    def __post_init__(self) -> None:
        check_member(self.quant_mode, QuantizationMode, "QConfig.quant_mode")
        check_member(self.quant_flow, QuantFlow, "QConfig.quant_flow")
        if not isinstance(self.global_quant_config, QLayerConfig):
            raise RecipeError(
                f"QConfig.global_quant_config must be a QLayerConfig, got {type(self.global_quant_config).__name__}"
            )
        for name, default in _LANGUAGE_MODELS.items():
            if getattr(self, name) != default and (default is None or getattr(self, name)):
                raise RecipeError(
                    f"QConfig.{name} must be omitted, got {getattr(self, name)!r}: it is for language models"
                )
        if self.log_severity_level != 1:
            raise RecipeError(
                f"QConfig.log_severity_level must be omitted, got {self.log_severity_level!r}; use "
                "logging.getLogger('quantry').setLevel"
            )
        if self.keep_prequantized_layers is not True:
            raise RecipeError(
                f"QConfig.keep_prequantized_layers must be omitted, got {self.keep_prequantized_layers!r}: captured "
                "models are float"
            )
        # The dataclass is frozen, so fields are normalized with object.__setattr__.
        object.__setattr__(self, "exclude", _listed(self.exclude))
        self._check_layers()
        algorithms = tuple(_algorithm(entry) for entry in _listed(self.algo_config))
        object.__setattr__(self, "algo_config", algorithms)
        equalizing = [type(entry) for entry in algorithms if type(entry) in EQUALIZATIONS]
        if len(set(equalizing)) < len(equalizing):
            raise RecipeError(f"QConfig.algo_config must have each equalization at most once, got {list(algorithms)!r}")

    def _check_layers(self) -> None:
        for name in ("layer_type_quant_config", "layer_quant_config"):
            entries = getattr(self, name)
            if not isinstance(entries, Mapping):
                raise RecipeError(f"QConfig.{name} must be a mapping to configurations, got {type(entries).__name__}")
            for key, value in entries.items():
                if value is not None and not isinstance(value, QLayerConfig):
                    raise RecipeError(f"the configuration of {key!r} must be a QLayerConfig or None, got {value!r}")


Config = QConfig
"""The older name of `QConfig`."""


def _listed(entries: Any) -> tuple[Any, ...]:
    """Return one entry, several or None as a tuple."""
    if entries is None:
        return ()
    return tuple(entries) if isinstance(entries, list | tuple | set | frozenset) else (entries,)


def _stored_algorithm(entry: Any) -> Any:
    """Return an algorithm from plain data, or its name."""
    if not isinstance(entry, Mapping):
        return entry
    values = dict(entry)
    name = str(values.pop("name", ""))
    kinds = {kind.__name__: kind for kind in _ALGORITHMS.values()}
    if name not in kinds:
        raise RecipeError(
            f"QConfig.algo_config must hold algorithms among {', '.join(kinds)}, got {name!r}"
            f"{nearest_spelling(name, kinds)}"
        )
    return decode(kinds[name], values, "QConfig.algo_config")


def _algorithm(entry: Any) -> Any:
    if isinstance(entry, TuneStep) or type(entry) in EQUALIZATIONS:
        return entry
    if isinstance(entry, type) and (entry in EQUALIZATIONS or issubclass(entry, TuneStep)):
        raise RecipeError(f"QConfig.algo_config must hold objects, got the class {entry.__name__}; write it with ()")
    name = str(entry).casefold()
    if name not in _ALGORITHMS:
        raise RecipeError(
            f"QConfig.algo_config must hold algorithms of quantry.recipe or names among {', '.join(_ALGORITHMS)}, got "
            f"{entry!r}{nearest_spelling(name, _ALGORITHMS)}"
        )
    return _ALGORITHMS[name]()
