"""Configurations: `QuantizationConfig` and `Config`."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

from quantry.onnx.enums import AnyFormat, AnyMethod, AnyType, CalibrationMethod, QuantFormat, QuantType
from quantry.recipe.checked import KnownArguments, field_names, unknown_name


class KnownAttributes:
    """Base of dataclasses that reject assignments to unknown attributes.

    Example:
        >>> from quantry.onnx import QuantizationConfig
        >>> QuantizationConfig().calibration_method = "MinMax"
        Traceback (most recent call last):
        ...
        quantry.errors.RecipeError: QuantizationConfig must be given known attributes, got 'calibration_method'; \
did you mean 'calibrate_method'?
    """

    __dataclass_fields__: ClassVar[dict[str, Any]]

    def __setattr__(self, name: str, value: object) -> None:
        """Set a field.

        Raises:
            RecipeError: There is no such field; the message suggests the nearest spelling.
        """
        if name not in field_names(type(self)):
            raise unknown_name(type(self), "attributes", name)
        super().__setattr__(name, value)


@dataclass
class QuantizationConfig(KnownAttributes, KnownArguments):
    """A configuration for the whole model, with the defaults of AMD's documentation.

    These are the defaults of AMD Quark 0.13, except ``include_cle``: it is False as in AMD's documentation, and True in
    that version. The named configurations of `get_default_config` set it to True.

    docs/reference/options.md lists the meaning of each field and each key of ``extra_options``, the fields of a
    `quantry.Recipe` that it sets, and what is not supported. Members of onnxruntime's enumerations are accepted too.

    Attributes:
        calibrate_method: The calibration method.
        quant_format: The format.
        activation_type: Type of activations.
        weight_type: Type of weights.
        input_nodes: Nodes before these stay float.
        output_nodes: Nodes after these stay float.
        op_types_to_quantize: Quantize only these operator types.
        nodes_to_quantize: Quantize only these nodes.
        extra_op_types_to_quantize: Also quantize these operator types.
        nodes_to_exclude: Do not quantize these nodes.
        subgraphs_to_exclude: Do not quantize the nodes between these pairs of nodes.
        specific_tensor_precision: Apply MixedPrecisionTensor.
        execution_providers: onnxruntime's execution providers for calibration.
        per_channel: One weight scale per channel.
        reduce_range: Use one bit less for weights.
        optimize_model: Fold BatchNormalization.
        use_dynamic_quant: Quantize activations at run time.
        use_external_data_format: Store weights outside the model file.
        convert_fp16_to_fp32: Convert a float16 model to float32 first.
        convert_nchw_to_nhwc: Change the model's inputs to channels-last.
        include_sq: SmoothQuant.
        include_rotation: QuaRot.
        include_cle: Cross-layer equalization.
        include_auto_mp: Mixed precision.
        include_fast_ft: AdaRound or AdaQuant.
        enable_npu_cnn: Apply the rules of AMD's integer NPU.
        enable_npu_transformer: Quantize only MatMul and Gemm.
        debug_mode: Log every step.
        crypto_mode: Write nothing readable to disk.
        print_summary: Log a summary of the result.
        ignore_warnings: Log options without effect as information instead of warnings.
        log_severity_level: Logging level.
        extra_options: Further options by name.
    """

    calibrate_method: AnyMethod = CalibrationMethod.MinMax
    quant_format: AnyFormat = QuantFormat.QDQ
    activation_type: AnyType = QuantType.QInt8
    weight_type: AnyType = QuantType.QInt8
    input_nodes: list[str] = field(default_factory=list)
    output_nodes: list[str] = field(default_factory=list)
    op_types_to_quantize: list[str] = field(default_factory=list)
    nodes_to_quantize: list[str] = field(default_factory=list)
    extra_op_types_to_quantize: list[str] = field(default_factory=list)
    nodes_to_exclude: list[str] = field(default_factory=list)
    subgraphs_to_exclude: list[tuple[list[str], list[str]]] = field(default_factory=list)
    specific_tensor_precision: bool = False
    execution_providers: list[str] = field(default_factory=lambda: ["CPUExecutionProvider"])
    per_channel: bool = False
    reduce_range: bool = False
    optimize_model: bool = True
    use_dynamic_quant: bool = False
    use_external_data_format: bool = False
    convert_fp16_to_fp32: bool = False
    convert_nchw_to_nhwc: bool = False
    include_sq: bool = False
    include_rotation: bool = False
    include_cle: bool = False
    include_auto_mp: bool = False
    include_fast_ft: bool = False
    enable_npu_cnn: bool = False
    enable_npu_transformer: bool = False
    debug_mode: bool = False
    crypto_mode: bool = False
    print_summary: bool = True
    ignore_warnings: bool = True
    log_severity_level: int | None = None
    extra_options: dict[str, Any] | None = field(default_factory=dict)


@dataclass
class Config(KnownAttributes, KnownArguments):
    """A configuration for `ModelQuantizer`.

    Attributes:
        global_quant_config: The configuration of the whole model.
    """

    global_quant_config: QuantizationConfig = field(default_factory=QuantizationConfig)
