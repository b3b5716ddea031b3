"""Models that take images with their channels last, as cameras and decoders give them."""

import onnx_ir as ir

from quantry.errors import ModelError

_TO_FIRST = (0, 3, 1, 2)
_TO_LAST = (0, 2, 3, 1)


def inputs_with_channels_last(model: ir.Model) -> ir.Model:
    """Give every input with four axes its channels last, and put a Transpose behind it.

    ::

        image [n, c, h, w] -> ...      becomes      image [n, h, w, c] -> Transpose -> ...

    Args:
        model: The model, which is changed.

    Returns:
        The same model.

    Raises:
        ModelError: No input has four axes.
    """
    graph = model.graph
    images = [value for value in graph.inputs if value.shape is not None and len(value.shape) == 4]
    if not images:
        raise ModelError(
            "convert_nchw_to_nhwc needs an input with four axes, got "
            + ", ".join(f"{value.name} {value.shape}" for value in graph.inputs)
        )
    for value in images:
        assert value.shape is not None
        first = value.shape
        uses = list(value.uses())
        node = ir.node("Transpose", [value], {"perm": _TO_FIRST}, name=f"{value.name}_channels_first")
        result = node.outputs[0]
        result.name, result.shape, result.type = f"{value.name}_nchw", first, value.type
        for use in uses:
            use.node.replace_input_with(use.idx, result)
        value.shape = ir.Shape([first[axis] for axis in _TO_LAST])
        graph.insert_before(graph[0], node)
    return model
