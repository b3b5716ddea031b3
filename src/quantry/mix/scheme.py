"""One way to quantize every tensor of a model, and what is left of single tensors under it."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.emit import emit
from quantry.execute.quantized_view import QuantizedView
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import OwnRange, QuantPlan
from quantry.numerics.tensor_params import QuantParams
from quantry.recipe import DataType, EmitOptions, TensorSpec, VitisDialect, VitisQdq
from quantry.runtime.sessions import run_session, simulation_session

Array = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Scheme:
    """What every tensor becomes.

    Attributes:
        plan: Types.
        params: Scales and zero points of the integer ones.
    """

    plan: QuantPlan
    params: QuantParams

    def rounded(self, tensor: str, values: Array) -> Array:
        """Return what is left of a tensor's values; all of them where the scheme leaves it float.

        Args:
            tensor: Name of an activation, a weight or a bias.
            values: Its values.
        """
        quantizer = self.view.get(tensor)
        if quantizer is None:
            return values
        return _rounding(quantizer.spec)(values) if quantizer.params is None else quantizer.round(values)

    @cached_property
    def view(self) -> QuantizedView:
        """The plan applied with these parameters."""
        return QuantizedView(self.plan, self.params)


# Opening the session takes 5 ms, and it is used for every tensor and sample.
@cache
def _rounding(spec: TensorSpec) -> Callable[[Array], Array]:
    """Return a function that rounds to a type without scales, as the written model does."""
    if spec.dtype == DataType.FLOAT16:
        return lambda values: values.astype(np.float16).astype(np.float32)
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("Identity", [x], name="copy")
    node.outputs[0].name = "y"
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 17}, name="rounding")
    plan = QuantPlan({"x": OwnRange(spec)})
    carrier = EmitOptions(VitisQdq(VitisDialect.QUARK))
    model = emit(FloatModel(ir.Model(graph, ir_version=8)), plan, QuantParams(), carrier, {})
    session = simulation_session(model.to_bytes(), threads=1)
    return lambda values: np.asarray(run_session(session, {"x": values})["y"], np.float32)
