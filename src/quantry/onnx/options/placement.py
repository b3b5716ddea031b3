"""Options of which nodes are quantized and where Q/DQ pairs stand."""

from dataclasses import replace

from quantry.graph.operators import FUSIBLE
from quantry.onnx.options.draft import Draft, refuse
from quantry.onnx.options.option_row import Apply, Kind, OptionRow, sets
from quantry.onnx.options.types import bfp_attributes, mx_attributes
from quantry.recipe import DataType, Qdq, VitisDialect, VitisQdq

_ONE_PAIR = "every tensor has one Q/DQ pair, which all of its readers share; leave it out"


def _fuses(operator: str) -> Apply:
    def apply(draft: Draft, value: bool) -> Draft:
        others = tuple(name for name in draft.plan.fused_activations if name != operator)
        return replace(draft, plan=replace(draft.plan, fused_activations=(*others, operator) if value else others))

    return apply


def _pair_on_weight(draft: Draft, value: bool) -> Draft:
    stored_float = draft.plan.weight.dtype.is_block
    if value == stored_float:
        return draft
    reason = (
        "weights of block formats are kept as floats in front of their node"
        if stored_float
        else "weights are stored in their type, which makes the file small and computes the same"
    )
    raise refuse("extra_options['AddQDQPairToWeight']", value, f"{reason}; leave it out")


def _dialect(dialect: VitisDialect, key: str) -> Apply:
    def apply(draft: Draft, value: bool) -> Draft:
        if not value:
            return draft
        if draft.format is not None and not isinstance(draft.format, VitisQdq | Qdq):
            return draft.noted(f"{key} has no effect without a Q/DQ format")
        return replace(draft, format=VitisQdq(dialect))

    return apply


def _bfloat16_as_casts(draft: Draft, value: bool) -> Draft:
    if not value:
        return draft
    if DataType.BFLOAT16 not in (draft.plan.activation.dtype, draft.plan.weight.dtype):
        return draft.noted("BF16QDQToCast has no effect without QBFloat16")
    return replace(draft, format=Qdq())


def _spelling(key: str, field: str, kind: Kind = Kind.LIST, default: str = "[]") -> OptionRow:
    return OptionRow(key, kind, default, f"QConfig's spelling of the field {field}.", spelling_of=field)


def _not_written(
    key: str, meaning: str, instead: str, *, harmless: object = False, kind: Kind = Kind.BOOL
) -> OptionRow:
    return OptionRow(key, kind, repr(harmless), meaning, refused=instead, harmless=(harmless,))


ROWS = (
    _spelling("OpTypesToQuantize", "op_types_to_quantize"),
    _spelling("NodesToQuantize", "nodes_to_quantize"),
    _spelling("ExtraOpTypesToQuantize", "extra_op_types_to_quantize"),
    _spelling("InputNodes", "input_nodes"),
    _spelling("OutputNodes", "output_nodes"),
    OptionRow(
        "QuantizeAllOpTypes",
        Kind.BOOL,
        "False",
        "Quantize every operator with float inputs and outputs, also those that no rule knows.",
        "plan.every_operator",
        sets("plan.every_operator"),
    ),
    _not_written("EnableSubgraph", "Go into the bodies of If and Loop.", "bodies of If and Loop stay float"),
    OptionRow(
        "ForceQuantizeNoInputCheck",
        Kind.BOOL,
        "False; True in presets",
        "Quantize operators that only move data even where nothing else has quantized their input.",
        "plan.force_pass_through",
        sets("plan.force_pass_through"),
    ),
    OptionRow(
        "MatMulConstBOnly",
        Kind.BOOL,
        "False; True with enable_npu_transformer",
        "Quantize MatMul only where its right operand is a constant.",
        "plan.constant_right_operand_only",
        sets("plan.constant_right_operand_only"),
    ),
    OptionRow(
        "AddQDQPairToWeight",
        Kind.BOOL,
        "False; True for block formats",
        "Keep float weights with a Q/DQ pair behind them. What happens anyway is accepted, the other value refused.",
        "nothing to set",
        _pair_on_weight,
    ),
    _not_written(
        "OpTypesToExcludeOutputQuantization",
        "Leave the outputs of these operator types float.",
        "an operator is quantized as a whole or not; use QConfig's layer_type_config={None: [types]} or "
        "nodes_to_exclude",
        harmless=[],
        kind=Kind.LIST,
    ),
    _not_written(
        "NodesToExcludeOutputQuantization",
        "Leave the outputs of these nodes float.",
        "a node is quantized as a whole or not; use nodes_to_exclude",
        harmless=[],
        kind=Kind.LIST,
    ),
    OptionRow(
        "DedicatedQDQPair",
        Kind.BOOL,
        "False",
        "A Q/DQ pair of its own for every reader.",
        "emit.dedicated_pairs",
        sets("dedicated_pairs"),
    ),
    _not_written("DedicateDQNode", "A DQ of its own for every reader.", _ONE_PAIR),
    _not_written("EnableDualQuantNodePairs", "Two pairs where precisions meet.", _ONE_PAIR),
    _not_written(
        "QDQOpTypePerChannelSupportToAxis",
        "The axis of channels by operator type.",
        "the rule of each operator names its axis of channels; for another one use quantry.quantize with "
        "PerChannel(axis=...)",
        harmless={},
        kind=Kind.DICT,
    ),
    OptionRow(
        "UseQDQVitisCustomOps",
        Kind.BOOL,
        "False",
        "Write pairs as VitisQuantizeLinear and VitisDequantizeLinear of com.vai.quantize.",
        "emit.format = VitisQdq(VitisDialect.VITIS)",
        _dialect(VitisDialect.VITIS, "UseQDQVitisCustomOps"),
    ),
    OptionRow(
        "UseQDQContribOps",
        Kind.BOOL,
        "False",
        "Write pairs in com.microsoft.",
        "emit.format = VitisQdq(VitisDialect.CONTRIB)",
        _dialect(VitisDialect.CONTRIB, "UseQDQContribOps"),
    ),
    *(
        OptionRow(
            f"RemoveQDQConv{operator}",
            Kind.BOOL,
            "True",
            f"No Q/DQ pair between an operator and the {operator} behind it.",
            f"plan.fused_activations has {operator}",
            _fuses(operator),
        )
        for operator in FUSIBLE
    ),
    _not_written("RemoveQDQConvGelu", "No pair between Conv and Gelu.", "that pair is always written"),
    _not_written("RemoveQDQMulAdd", "No pair between Mul and Add.", "that pair is always written"),
    _not_written(
        "RemoveQDQInstanceNorm", "No pair around InstanceNormalization.", "use nodes_to_exclude for these nodes"
    ),
    _not_written("RemoveFusedQDQ", "No pairs inside fused patterns.", "those pairs are always written"),
    OptionRow(
        "RemoveQDQBetweenOps",
        Kind.LIST,
        "None",
        "No pair between these pairs of operator types.",
        refused="only Relu, Clip, LeakyRelu and PRelu can do without the pair before them: use RemoveQDQConvRelu and "
        "its like",
        harmless=(None, []),
    ),
    OptionRow(
        "BF16QDQToCast",
        Kind.BOOL,
        "False",
        "Write bfloat16 as Cast instead of Q/DQ pairs.",
        "emit.format = Qdq()",
        _bfloat16_as_casts,
    ),
    _not_written(
        "BF16WithClip", "Clip to the range of bfloat16.", "beyond it lies infinity, as in IEEE 754; leave it out"
    ),
    _not_written("EnableVaimlBF16", "bfloat16 as AMD's VAIML compiler wants it.", "use BF16QDQToCast=True"),
    OptionRow(
        "BFPAttributes",
        Kind.DICT,
        "{bfp_method: to_bfp, bit_width: 16, axis: 1, block_size: 8, rounding_mode: 2}",
        "Which block floating-point format QBFP is: BFP16 (to_bfp, 16) or MX4, MX6, MX9 (to_bfp_prime, 11, 13, 16).",
        "plan.activation, plan.weight: dtype and PerBlock(size, axis)",
        bfp_attributes,
    ),
    OptionRow(
        "MXAttributes",
        Kind.DICT,
        "{element_dtype: int8, axis: 1, block_size: 32, rounding_mode: 2}",
        "Which microscaling format QMX is.",
        "plan.activation, plan.weight: dtype and PerBlock(size, axis)",
        mx_attributes,
    ),
    OptionRow(
        "RefineBlockAxis",
        Kind.BOOL,
        "False",
        "Choose the axis of blocks for every reader.",
        refused="blocks lie along one axis in the whole model; choose it with 'axis' in BFPAttributes or MXAttributes",
        harmless=(False,),
    ),
)
