"""Cross-layer equalization: channels of consecutive layers get like ranges without changing the function."""

from subject import Subject

from quantry.onnx import PowerOfTwoMethod, QuantFormat, QuantizationConfig, QuantType


def main() -> None:
    """Quantize with and without, and compare."""
    subject, arguments = Subject.of_command_line(__doc__, steps=1)
    models = {}
    for name, include in (("power-of-two U8S8", False), ("... with CLE", True)):
        config = QuantizationConfig(
            quant_format=QuantFormat.QDQ,
            calibrate_method=PowerOfTwoMethod.MinMSE,
            activation_type=QuantType.QUInt8,
            weight_type=QuantType.QInt8,
            include_cle=include,
            extra_options={
                "ActivationSymmetric": True,
                "ReplaceClip6Relu": True,
                "CLESteps": arguments.steps,
                "CLEScaleAppendBias": True,
            },
        )
        models[name] = subject.quantized(f"cross_layer_equalization_{include}", config)
    scores = subject.show("cross_layer_equalization.py", models)
    if len({scores[name] for name in models}) == 1:
        print("no two layers of this model can be equalized: what lies between them lets no factor pass")


if __name__ == "__main__":
    main()
