"""SmoothQuant: outliers of activations move into the weights, which have resolution to spare."""

from subject import Subject

from quantry.onnx import CalibrationMethod, QuantFormat, QuantizationConfig, QuantType


def main() -> None:
    """Quantize with and without, and compare."""
    subject, arguments = Subject.of_command_line(__doc__, alpha=0.5)
    models = {}
    for name, include in (("U8S8 per channel", False), ("... with SmoothQuant", True)):
        config = QuantizationConfig(
            quant_format=QuantFormat.QDQ,
            calibrate_method=CalibrationMethod.Percentile,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
            include_sq=include,
            extra_options={"SmoothAlpha": arguments.alpha},
        )
        models[name] = subject.quantized(f"smooth_quant_{include}", config)
    subject.show("smooth_quant.py", models)


if __name__ == "__main__":
    main()
