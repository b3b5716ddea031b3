"""Options of evaluation, files and the rest."""

from dataclasses import replace

from quantry.onnx.options.draft import Draft
from quantry.onnx.options.option_row import Kind, OptionRow, sets


def _data(draft: Draft, value: object) -> Draft:
    if not draft.evaluate and value is not None:
        return draft.noted("EvalDataReader has no effect without EvalMetrics")
    return replace(draft, evaluation_data=value)


ROWS = (
    OptionRow(
        "EvalMetrics",
        Kind.BOOL,
        "False",
        "Compare the result with the float model and log cosine and L2.",
        "evaluation",
        sets("evaluate"),
    ),
    OptionRow(
        "EvalDataReader",
        Kind.ANY,
        "None",
        "Data for EvalMetrics; else the calibration data.",
        "evaluation_data",
        _data,
    ),
    OptionRow(
        "TmpDir",
        Kind.TEXT,
        "None",
        "The folder of temporary files.",
        refused="temporary files lie where Python's tempfile puts them; set the environment variable TMPDIR",
        harmless=(None,),
    ),
    OptionRow(
        "UserCustomOpLibPath",
        Kind.TEXT,
        "None",
        "A library of operators to load into every session.",
        refused="sessions load no libraries; give operators of your own as functions inside the model",
        harmless=(None,),
    ),
    OptionRow(
        "EncryptionAlgorithm",
        Kind.TEXT,
        "None",
        "Encrypt files.",
        refused="nothing is encrypted; take the model from memory (model_output=None) and encrypt it yourself",
        harmless=(None,),
    ),
    OptionRow(
        "QuantizationPreference",
        Kind.TEXT,
        "None",
        "Choose several of these options at once: 'accuracy', 'speed' or 'resource_efficiency'.",
        refused="it would overwrite what was chosen; for accuracy use PowerOfTwoMethod.MinMSE or "
        "LayerWiseMethod.LayerWisePercentile, memory is bounded and the float pass is made once in any case",
        harmless=(None,),
    ),
)
