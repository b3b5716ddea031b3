"""Fast finetuning: AdaRound learns the rounding of weights, AdaQuant trains the weights; both need torch."""

from subject import Subject

from quantry.onnx import CalibrationMethod, QuantFormat, QuantizationConfig, QuantType

RATES = {"adaround": 0.1, "adaquant": 1e-5}


def main() -> None:
    """Quantize without finetuning and with either algorithm, and compare."""
    subject, arguments = Subject.of_command_line(__doc__, iterations=200, algorithms="adaround,adaquant", device="cpu")
    models = {}
    for algorithm in ("", *arguments.algorithms.split(",")):
        finetune = {
            "OptimAlgorithm": algorithm,
            "OptimDevice": arguments.device,
            "BatchSize": 1,
            "NumIterations": arguments.iterations,
            "LearningRate": RATES.get(algorithm),
        }
        config = QuantizationConfig(
            quant_format=QuantFormat.QDQ,
            calibrate_method=CalibrationMethod.MinMax,
            activation_type=QuantType.QInt16,
            weight_type=QuantType.QInt8,
            include_fast_ft=bool(algorithm),
            extra_options={"ActivationSymmetric": True, **({"FastFinetune": finetune} if algorithm else {})},
        )
        name = f"... with {algorithm}" if algorithm else "A16W8"
        models[name] = subject.quantized(f"fast_finetune_{algorithm or 'none'}", config)
    subject.show("fast_finetune.py", models)


if __name__ == "__main__":
    main()
