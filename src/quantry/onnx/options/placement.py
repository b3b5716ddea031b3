"""Options that select nodes and place Q/DQ pairs."""

from dataclasses import replace

from quantry.facts.operators import FUSIBLE
from quantry.onnx.options.option_row import Apply, Kind, OptionRow, refuses, sets, sets_field
from quantry.onnx.options.recipe_draft import RecipeDraft, refuse, with_field
from quantry.onnx.options.types import bfp_attributes, mx_attributes
from quantry.recipe import DataType, Qdq, VitisDialect, VitisQdq

_ONE_PAIR = "every tensor has one Q/DQ pair that all of its readers share; leave it out"


def _fuses(operator: str) -> Apply:
    def apply(draft: RecipeDraft, value: bool) -> RecipeDraft:
        operators = tuple(name for name in draft.plan.fused_activations if name != operator)
        return replace(
            draft, plan=replace(draft.plan, fused_activations=(*operators, operator) if value else operators)
        )

    return apply


def _pair_on_weight(draft: RecipeDraft, value: bool) -> RecipeDraft:
    stored_float = draft.plan.weight.dtype.is_block
    if value == stored_float:
        return draft
    reason = (
        "weights of block formats are stored as floats before their Q/DQ node"
        if stored_float
        else "weights are stored in their quantized type, which makes the file smaller and computes the same"
    )
    raise refuse("extra_options['AddQDQPairToWeight']", value, f"{reason}; leave it out")


def _dialect(dialect: VitisDialect, key: str) -> Apply:
    def apply(draft: RecipeDraft, value: bool) -> RecipeDraft:
        if not value:
            return draft
        if draft.format is not None and not isinstance(draft.format, VitisQdq | Qdq):
            return draft.with_note(f"{key} has no effect without a Q/DQ format")
        return replace(draft, format=VitisQdq(dialect))

    return apply


def _bfloat16_as_casts(draft: RecipeDraft, value: bool) -> RecipeDraft:
    if not value:
        return draft
    if DataType.BFLOAT16 not in (draft.plan.activation.dtype, draft.plan.weight.dtype):
        return draft.with_note("BF16QDQToCast has no effect without QBFloat16")
    return replace(draft, format=Qdq())


def _spelling(key: str, field: str, kind: Kind = Kind.LIST, default: str = "[]") -> OptionRow:
    return OptionRow(key, kind, default, f"QConfig's name for the field {field}.", spelling_of=field)


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
    sets_field(
        "QuantizeAllOpTypes",
        Kind.BOOL,
        "False",
        "Quantize every operator with float inputs and outputs, even without a rule for it.",
        "plan.every_operator",
    ),
    sets_field("EnableSubgraph", Kind.BOOL, "True", "Quantize the bodies of If, Loop and Scan.", "plan.body_weights"),
    sets_field(
        "ForceQuantizeNoInputCheck",
        Kind.BOOL,
        "False; True in presets",
        "Quantize operators that only move data even if their input is not quantized otherwise.",
        "plan.force_pass_through",
    ),
    sets_field(
        "MatMulConstBOnly",
        Kind.BOOL,
        "False; True with enable_npu_transformer",
        "Quantize MatMul only if its right operand is constant.",
        "plan.constant_right_operand_only",
    ),
    OptionRow(
        "AddQDQPairToWeight",
        Kind.BOOL,
        "False; True for block formats",
        "Store float weights with a Q/DQ pair after them. Only the value that is used anyway is accepted.",
        "nothing",
        _pair_on_weight,
    ),
    OptionRow(
        "OpTypesToExcludeOutputQuantization",
        Kind.LIST,
        "[]",
        "Do not quantize the outputs of these operator types, unless a quantized node reads them.",
        "plan.float_outputs",
        lambda draft, value: with_field(draft, "plan.float_outputs", tuple(value)),
    ),
    _not_written(
        "NodesToExcludeOutputQuantization",
        "Do not quantize the outputs of these nodes.",
        "nodes are quantized completely or not at all; use nodes_to_exclude",
        harmless=[],
        kind=Kind.LIST,
    ),
    OptionRow(
        "DedicatedQDQPair",
        Kind.BOOL,
        "False",
        "A separate Q/DQ pair for every reader.",
        "emit.dedicated_pairs",
        sets("dedicated_pairs"),
    ),
    _not_written("DedicateDQNode", "A separate DequantizeLinear for every reader.", _ONE_PAIR),
    _not_written("EnableDualQuantNodePairs", "Two Q/DQ pairs where types change.", _ONE_PAIR),
    _not_written(
        "QDQOpTypePerChannelSupportToAxis",
        "Channel axis by operator type.",
        "the rule of each operator defines its channel axis; for another one use quantry.quantize with "
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
            f"No Q/DQ pair between an operator and the {operator} after it.",
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
        refused="only the pairs before Relu, Clip, LeakyRelu and PRelu can be omitted; use RemoveQDQConvRelu "
        "and similar options",
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
        "BF16WithClip", "Clip to the range of bfloat16.", "larger values become infinity, as in IEEE 754; leave it out"
    ),
    _not_written("EnableVaimlBF16", "Write bfloat16 for AMD's VAIML compiler.", "use BF16QDQToCast=True"),
    OptionRow(
        "BFPAttributes",
        Kind.DICT,
        "{bfp_method: to_bfp, bit_width: 16, axis: 1, block_size: 8, rounding_mode: 2}",
        "The block format of QBFP: BFP16 (to_bfp, 16) or MX4, MX6, MX9 (to_bfp_prime, 11, 13, 16).",
        "plan.activation, plan.weight: dtype and PerBlock(size, axis)",
        bfp_attributes,
    ),
    OptionRow(
        "MXAttributes",
        Kind.DICT,
        "{element_dtype: int8, axis: 1, block_size: 32, rounding_mode: 2}",
        "The microscaling format of QMX.",
        "plan.activation, plan.weight: dtype and PerBlock(size, axis)",
        mx_attributes,
    ),
    refuses(
        "RefineBlockAxis",
        Kind.BOOL,
        "Choose the block axis for every reader.",
        "the whole model has one block axis; set it with 'axis' in BFPAttributes or MXAttributes",
        harmless=False,
    ),
)
