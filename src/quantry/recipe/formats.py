"""Formats: how a quantized model is written as ONNX."""

import enum
from dataclasses import dataclass

from quantry.errors import RecipeError
from quantry.recipe.checked import Checked


@dataclass(frozen=True)
class Qdq:
    """Standard ONNX QuantizeLinear and DequantizeLinear around float operators."""


class VitisDialect(enum.Enum):
    """The generation of AMD's tools that Q/DQ pairs are written for; the value is its spelling in recipes."""

    VAI = "vai"
    VITIS = "vitis"
    QUARK = "quark"
    CONTRIB = "contrib"


@dataclass(frozen=True)
class VitisQdq(Checked):
    """Q/DQ pairs in a vendor's domain, each defined by a model-local function in standard operators.

    The model keeps its opset for all types.

    Attributes:
        dialect: ``vai`` writes VAIQuantizeLinear and ``vitis`` VitisQuantizeLinear of com.vai.quantize, ``quark``
            ExtendedQuantizeLinear of com.amd.quark, and ``contrib`` QuantizeLinear of com.microsoft.
    """

    dialect: VitisDialect = VitisDialect.CONTRIB


@dataclass(frozen=True)
class FixNeuron:
    """One FixNeuron node of ai.onnx.contrib per tensor, with weights as rounded floats, as vai_q_onnx writes it."""


@dataclass(frozen=True)
class QOperator:
    """Operators on 8-bit integers (QLinearConv, QLinearMatMul, QLinearAdd, QGemm, ...) without Q/DQ pairs between."""


ACCURACY_LEVELS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Dynamic:
    """Dynamic quantization: activations are quantized at run time, each tensor by its own extremes.

    Written as DynamicQuantizeLinear, ConvInteger, MatMulInteger and DynamicQuantizeLSTM. Needs no calibration. Use it
    with ``PlanOptions.weights_only``.
    """


@dataclass(frozen=True)
class MatMulNBits(Checked):
    """Products of float activations with packed 4- or 8-bit weights, as com.microsoft MatMulNBits.

    Needs no calibration. Use it with ``PlanOptions.weights_only`` and weights of granularity ``PerGroup``.

    Attributes:
        accuracy_level: Precision in which the kernel may compute: 0 that of the input, 1 float32, 2 float16,
            3 bfloat16, 4 int8, which is fastest and also rounds the activations.
    """

    accuracy_level: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.accuracy_level not in ACCURACY_LEVELS:
            raise RecipeError(
                f"MatMulNBits.accuracy_level must be one of {ACCURACY_LEVELS}, got {self.accuracy_level!r}"
            )


Format = Qdq | QOperator | VitisQdq | FixNeuron | Dynamic | MatMulNBits


@dataclass(frozen=True)
class EmitOptions(Checked):
    """How the quantized model is written.

    Attributes:
        format: The format.
        dedicated_pairs: Write a separate Q/DQ pair for every reader of an activation; only for formats with pairs.
        explicit_attributes: Write out attributes of convolutions and pooling that have their default value.
    """

    format: Format = Qdq()
    dedicated_pairs: bool = False
    explicit_attributes: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dedicated_pairs and not isinstance(self.format, Qdq | VitisQdq):
            raise RecipeError(
                "EmitOptions.dedicated_pairs must be False unless the format is Qdq() or VitisQdq(), which have pairs; "
                f"got {self.format}"
            )
