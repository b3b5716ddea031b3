"""The one table that translates options of AMD Quark and vai_q_onnx into recipes."""

from quantry.onnx.options import (
    algorithms,
    calibration,
    config_fields,
    mixed_precision,
    placement,
    preprocessing,
    types,
)
from quantry.onnx.options.option_row import Kind, OptionRow
from quantry.onnx.options.recipe_draft import RandomInputs, RecipeDraft

SECTIONS: tuple[tuple[str, tuple[OptionRow, ...]], ...] = (
    ("Types, symmetry, biases", types.ROWS),
    ("Nodes and pairs", placement.ROWS),
    # Equalization before preprocessing, because ReplaceClip6Relu is an option of it.
    ("Equalization and other algorithms", algorithms.ROWS),
    ("Preprocessing and conversions", preprocessing.ROWS),
    ("Calibration", calibration.ROWS),
    ("Integer NPUs", preprocessing.NPU_ROWS),
    ("Evaluation and files", calibration.EVALUATION_ROWS),
)
"""Every key of ``extra_options``; they are applied in this order, not in the order of the dict."""

ROWS: dict[str, OptionRow] = {row.key: row for _, rows in SECTIONS for row in rows}

NESTED: dict[str, tuple[OptionRow, ...]] = {
    "FastFinetune": algorithms.FINETUNE_ROWS,
    "AutoMixprecision": mixed_precision.MIX_ROWS,
    "GPTQParams": algorithms.GPTQ_ROWS,
    "MatMulNBitsParams": types.N_BITS_ROWS,
}
"""Every key of the options that are dicts of options."""

FIELDS: dict[str, OptionRow] = {row.key: row for row in config_fields.ROWS}
"""Every field of ``QuantizationConfig``, in its order."""

__all__ = ["FIELDS", "NESTED", "ROWS", "SECTIONS", "Kind", "OptionRow", "RandomInputs", "RecipeDraft"]
