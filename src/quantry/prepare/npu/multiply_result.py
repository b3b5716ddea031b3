"""Appending a constant factor to a node.

::

    before    node -> t -> readers
    after     node -> t_before_npu -> Mul(factor) -> t -> readers
"""

import numpy as np
import onnx_ir as ir

from quantry.prepare.graph.fresh_name import FreshNames
from quantry.prepare.npu.take_over import take_over
from quantry.prepare.weights import new_initializer


def multiply_result(node: ir.Node, factor: float, names: FreshNames) -> None:
    """Multiply the first output of a node by a constant.

    Args:
        node: The node.
        factor: The constant.
        names: Names that are free.
    """
    graph, output = node.graph, node.outputs[0]
    assert graph is not None
    dtype = np.dtype(np.float32) if output.dtype is None else output.dtype.numpy()
    constant = new_initializer(names.value(f"{node.name}_npu_factor"), np.asarray(factor, dtype))
    graph.register_initializer(constant)
    product = ir.node("Mul", [output, constant], name=names.node(f"{node.name}_npu_factor"))
    graph.insert_after(node, product)
    take_over(output, product.outputs[0], names)
