"""onnxruntime.quantization's side."""

from collections.abc import Callable
from typing import Any

from benchmarks.tasks.model_size import model_bytes
from benchmarks.tasks.samples import SampleReader


def quantize(
    model: str,
    samples: str,
    count: int,
    activation: str = "QUInt8",
    method: str = "MinMax",
    output: str = "quantized.onnx",
    **options: Any,
) -> Callable[[], dict[str, Any]]:
    """Time the steps of its documentation: pre-processing, then static quantization to QDQ.

    Args:
        model: Path of the float model.
        samples: Folder of samples.
        count: How many of them.
        activation: Member of ``QuantType``; weights are QInt8.
        method: Member of ``CalibrationMethod``.
        output: Path of the quantized model.
        options: ``symmetric`` activations, weights ``per_channel``, ``external_data``.
    """
    from onnxruntime.quantization import CalibrationMethod, QuantFormat, QuantType, quantize_static
    from onnxruntime.quantization.shape_inference import quant_pre_process

    external = options.get("external_data", False)
    per_channel = options.get("per_channel", False)

    def job() -> dict[str, Any]:
        source = _raised(model, 13) if per_channel else model
        quant_pre_process(source, "prepared.onnx", skip_symbolic_shape=True, save_as_external_data=external)
        quantize_static(
            "prepared.onnx",
            output,
            SampleReader(samples, count),
            quant_format=QuantFormat.QDQ,
            per_channel=per_channel,
            activation_type=QuantType[activation],
            weight_type=QuantType.QInt8,
            calibrate_method=CalibrationMethod[method],
            use_external_data_format=external,
            extra_options={"ActivationSymmetric": options.get("symmetric", False)},
        )
        return {"bytes": model_bytes(output)}

    return job


def _raised(model: str, opset: int) -> str:
    """Return a copy of the model with at least that opset, the first that has scales for each channel."""
    import onnx
    from onnx import version_converter

    loaded = onnx.load(model)
    if next(entry.version for entry in loaded.opset_import if entry.domain == "") >= opset:
        return model
    onnx.save(version_converter.convert_version(loaded, opset), "raised.onnx")
    return "raised.onnx"
