"""Mixed precision: 16-bit activations where they matter, 8-bit ones elsewhere."""

from typing import Any

import numpy as np
from subject import Subject

from quantry import demo
from quantry.evaluate.tasks import match_image, summarize
from quantry.onnx import CalibrationMethod, QuantizationConfig, QuantType, VitisQuantFormat, VitisQuantType


def precision(outputs: Any) -> float:
    """Return the mean average precision of outputs for the scenes that calibrate, in their order."""
    found = np.asarray(outputs)
    scenes = demo.calibration_scenes(len(found))
    matches = [
        match_image(demo.decode(one[None])[0], scene.boxes, scene.labels, len(demo.CLASS_NAMES))
        for one, scene in zip(found, scenes, strict=True)
    ]
    return summarize(matches).map


def configuration(bits: Any, **mixed: Any) -> QuantizationConfig:
    """Return a configuration with activations of these bits and 8-bit weights."""
    return QuantizationConfig(
        calibrate_method=CalibrationMethod.Percentile,
        quant_format=VitisQuantFormat.QDQ,
        activation_type=bits,
        weight_type=QuantType.QInt8,
        include_auto_mp=bool(mixed),
        extra_options={"ActivationSymmetric": False, **({"AutoMixprecision": mixed} if mixed else {})},
    )


def main() -> None:
    """Quantize with 8 bits, with 16, and mixed, and compare."""
    subject, arguments = Subject.of_command_line(__doc__, drop=0.05, layers=8)
    mixed: dict[str, Any] = {
        "ActTargetQuantType": QuantType.QInt8,
        "WeightTargetQuantType": QuantType.QInt8,
        "OutputIndex": 0,
    }
    if subject.embedded:
        mixed |= {"Top1AccTarget": arguments.drop, "EvaluateFunction": precision}
    else:
        mixed |= {"NumTarget": arguments.layers}
    models = {
        "A8W8": subject.quantized("mixed_precision_8", configuration(VitisQuantType.QInt8)),
        "A16W8 mixed with A8W8": subject.quantized("mixed_precision", configuration(VitisQuantType.QInt16, **mixed)),
        "A16W8": subject.quantized("mixed_precision_16", configuration(VitisQuantType.QInt16)),
    }
    subject.show("mixed_precision.py", models)


if __name__ == "__main__":
    main()
