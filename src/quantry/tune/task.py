"""What every tuning algorithm is given."""

from dataclasses import dataclass

from quantry.observe import CalibrationData
from quantry.plan import QuantPlan
from quantry.prepare import FloatModel
from quantry.scale import QuantParams


@dataclass(frozen=True, eq=False)
class TuneTask:
    """A quantization to improve.

    Attributes:
        reference: The float model whose behaviour is aimed at.
        model: The same graph with the weights to start from.
        plan: Which tensors are quantized.
        params: With which scales and zero points.
        data: Samples.
    """

    reference: FloatModel
    model: FloatModel
    plan: QuantPlan
    params: QuantParams
    data: CalibrationData
