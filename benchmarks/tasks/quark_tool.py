"""AMD Quark's side. Runs in the peer's environment."""

from collections.abc import Callable
from typing import Any

from benchmarks.tasks.model_size import model_bytes
from benchmarks.tasks.samples import SampleReader


def quantize(
    model: str, samples: str, count: int, output: str = "quantized.onnx", **options: Any
) -> Callable[[], dict[str, Any]]:
    """Time ``ModelQuantizer.quantize_model``.

    Args:
        model: Path of the float model.
        samples: Folder of samples.
        count: How many of them.
        output: Path of the quantized model.
        options: ``preset`` names one of its default configurations; else ``method`` names the calibration method of an
            int8 configuration without equalization, to which ``include`` adds techniques by their own names.
            ``finetune`` changes keys of the configuration's FastFinetune.
    """
    from quark.onnx import ModelQuantizer
    from quark.onnx.quantization.config import Config

    config = _preset(options["preset"]) if "preset" in options else _method(options["method"])
    for technique in options.get("include", ()):
        setattr(config, f"include_{technique}", True)
    if "finetune" in options:
        config.extra_options["FastFinetune"] |= options["finetune"]
    config.use_external_data_format = options.get("external_data", False)

    def job() -> dict[str, Any]:
        ModelQuantizer(Config(global_quant_config=config)).quantize_model(model, output, SampleReader(samples, count))
        return {"bytes": model_bytes(output)}

    return job


def _preset(name: str) -> Any:
    from quark.onnx.quantization.config import get_default_config

    return get_default_config(name)


def _method(name: str) -> Any:
    from quark.onnx import CalibrationMethod, PowerOfTwoMethod, QuantFormat, QuantType
    from quark.onnx.quantization.config.config import QuantizationConfig

    methods = PowerOfTwoMethod if name == "MinMSE" else CalibrationMethod
    return QuantizationConfig(
        calibrate_method=methods[name],
        quant_format=QuantFormat.QDQ,
        activation_type=QuantType.QInt8,
        weight_type=QuantType.QInt8,
        include_cle=False,
        extra_options={"ActivationSymmetric": True, "ForceQuantizeNoInputCheck": True},
    )
