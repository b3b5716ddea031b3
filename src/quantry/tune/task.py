"""What every tuning algorithm is given."""

from dataclasses import dataclass

from quantry.data.calibration_data import CalibrationData
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.numerics.tensor_params import QuantParams


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
