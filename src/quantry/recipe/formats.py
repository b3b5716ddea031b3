"""Formats whose activations are float tensors: quantized while the model runs, or not at all."""

import enum
from dataclasses import dataclass

from quantry.errors import RecipeError
from quantry.recipe.checked import Checked


@dataclass(frozen=True)
class Qdq:
    """Standard ONNX QuantizeLinear and DequantizeLinear around float operators."""


class VitisDialect(enum.Enum):
    """Which generation of AMD's tools a Q/DQ pair is written for; the value is its spelling in recipes."""

    VAI = "vai"
    VITIS = "vitis"
    QUARK = "quark"
    CONTRIB = "contrib"


@dataclass(frozen=True)
class VitisQdq(Checked):
    """Q/DQ pairs in a vendor's domain, each with a model-local function that defines it in standard operators.

    The model keeps its opset whatever the types.

    Attributes:
        dialect: ``vai`` writes VAIQuantizeLinear and ``vitis`` VitisQuantizeLinear of com.vai.quantize, ``quark``
            ExtendedQuantizeLinear of com.amd.quark, ``contrib`` QuantizeLinear of com.microsoft.
    """

    dialect: VitisDialect = VitisDialect.CONTRIB


@dataclass(frozen=True)
class FixNeuron:
    """One FixNeuron node of ai.onnx.contrib for each tensor, weights as floats on their grid, as vai_q_onnx writes."""


@dataclass(frozen=True)
class QOperator:
    """Operators on 8-bit integers (QLinearConv, QLinearMatMul, QLinearAdd, QGemm, ...), joined directly."""


ACCURACY_LEVELS = (0, 1, 2, 3, 4)


@dataclass(frozen=True)
class Dynamic:
    """Integer products whose activations are quantized while the model runs, each tensor by its own extremes.

    Written as DynamicQuantizeLinear, ConvInteger and MatMulInteger. Needs no calibration; goes with
    ``PlanOptions.weights_only``.
    """


@dataclass(frozen=True)
class MatMulNBits(Checked):
    """Products of float activations with packed 4- or 8-bit weights, as com.microsoft MatMulNBits.

    Needs no calibration; goes with ``PlanOptions.weights_only`` and weights of granularity ``PerGroup``.

    Attributes:
        accuracy_level: In which precision the kernel may compute: 0 its own choice, which is that of the input; 1
            float32, 2 float16, 3 bfloat16, 4 int8, which is fastest and rounds the activations too.
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
        format: The dialect of ONNX.
        dedicated_pairs: Write a Q/DQ pair of its own for every reader of an activation; formats of pairs only.
    """

    format: Format = Qdq()
    dedicated_pairs: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.dedicated_pairs and not isinstance(self.format, Qdq | VitisQdq):
            raise RecipeError(
                "EmitOptions.dedicated_pairs goes with the formats Qdq() and VitisQdq(), which write pairs; got "
                f"{self.format}"
            )
