"""The stage "place_bodies": put quantized bodies of If, Loop and Scan into the float model around them."""

from quantry.graph.bodies import BodyPlace, with_bodies
from quantry.graph.float_model import FloatModel
from quantry.graph.quantized_model import QuantizedModel
from quantry.memo import stage
from quantry.runtime.environment import depends_on


@stage(name="place_bodies", version=1, environment=depends_on("onnx", "onnx_ir"))
def place_bodies(model: FloatModel, bodies: tuple[tuple[BodyPlace, QuantizedModel], ...]) -> FloatModel:
    """Return the model with quantized bodies; its main graph is still float.

    Args:
        model: The float model.
        bodies: The bodies and where they belong.
    """
    return FloatModel(with_bodies(model.model, {body_place: body.model for body_place, body in bodies}))
