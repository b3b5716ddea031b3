"""Reading a value that is known before the model runs."""

import numpy as np
import onnx_ir as ir


def constant_of(value: ir.Value | None) -> np.ndarray | None:
    """Return a value's array if it is an initializer that no caller can override, else None."""
    if value is None or not value.is_initializer() or value.is_graph_input() or value.const_value is None:
        return None
    return value.const_value.numpy()
