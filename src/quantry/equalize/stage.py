"""The equalize stage: same function, kinder weights."""

from quantry.equalize.cross_layer import equalize_layers
from quantry.graph.float_model import FloatModel
from quantry.graph.weights import rebuilt
from quantry.memo import stage
from quantry.recipe import EqualizeOptions
from quantry.runtime.environment import depends_on


@stage(name="equalize", version=1, environment=depends_on("onnx_ir", "numpy"))
def equalize(model: FloatModel, options: EqualizeOptions) -> FloatModel:
    """Return a model whose weights are easier to quantize and whose outputs are those of the given one.

    Args:
        model: The prepared model; it is left as it was.
        options: What to do.

    Returns:
        The equalized model. Its notes go on from the given model's and count what was not lawful, with the reason.
    """
    if options.cross_layer is None:
        return model
    equalized = model.model.clone()
    notes = equalize_layers(equalized, options.cross_layer)
    return FloatModel(rebuilt(equalized), notes)
