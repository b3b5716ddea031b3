"""Splits global average pools that are too large for the NPU.

::

    x [N, C, a*c, b*d] -> GlobalAveragePool
    x [N, C, a*c, b*d] -> AveragePool(a, b), stride (a, b) -> [N, C, c, d] -> GlobalAveragePool

The mean of the means of equal parts is the mean of the whole.
"""

from collections.abc import Container

import onnx_ir as ir

from quantry.prepare.graph.fresh_name import FreshNames
from quantry.prepare.npu.convertible_nodes import convertible
from quantry.prepare.npu.listed_nodes import listed
from quantry.prepare.npu.pool_factor import spatial_size

LARGEST_KERNEL = 512


def split_large_pool(model: ir.Model, untouched: Container[str] = ()) -> tuple[str, ...]:
    """Split every GlobalAveragePool over more than 512 values into AveragePool and GlobalAveragePool."""
    names = FreshNames(model)
    changed, left = [], []
    for node in convertible(model, untouched):
        size = spatial_size(node.inputs[0]) if node.op_type == "GlobalAveragePool" and node.domain == "" else None
        if size is None or size[0] * size[1] <= LARGEST_KERNEL:
            continue
        kernel = first_kernel(*size)
        if kernel is None:
            left.append(node.name or "")
        else:
            _insert(node, size, kernel, names)
            changed.append(node.name or "")
    done = (f"npu: split {len(changed)} large GlobalAveragePool nodes in two: {listed(changed)}",) if changed else ()
    why = "no divisors of height and width bring both parts to 512 values"
    return (*done, *((f"npu: left {len(left)} large GlobalAveragePool nodes: {why}: {listed(left)}",) if left else ()))


def first_kernel(height: int, width: int) -> tuple[int, int] | None:
    """Return the kernel of the first of two pools that each average at most 512 values, or None where there is none.

    Square kernels before others, because the NPU's error is known for them; then the smallest.

    Args:
        height: Height of the pooled tensor.
        width: Its width.

    Example:
        >>> first_kernel(28, 28)
        (2, 2)
    """
    candidates = [
        (down, across)
        for down in range(1, height + 1)
        for across in range(1, width + 1)
        if height % down == 0 and width % across == 0
    ]
    fitting = [
        (down, across)
        for down, across in candidates
        if down * across <= LARGEST_KERNEL and (height // down) * (width // across) <= LARGEST_KERNEL
    ]
    return min(fitting, key=lambda kernel: (kernel[0] != kernel[1], kernel[0] * kernel[1], kernel), default=None)


def _insert(node: ir.Node, size: tuple[int, int], kernel: tuple[int, int], names: FreshNames) -> None:
    data, graph = node.inputs[0], node.graph
    assert data is not None
    assert data.shape is not None
    assert graph is not None
    attributes = {"kernel_shape": list(kernel), "strides": list(kernel)}
    pool = ir.node("AveragePool", [data], attributes=attributes, name=names.node(f"{node.name}_part"))
    part = pool.outputs[0]
    part.name = names.value(f"{node.name}_part")
    part.type = data.type
    part.shape = ir.Shape([*data.shape[:2], size[0] // kernel[0], size[1] // kernel[1]])
    graph.insert_before(node, pool)
    node.replace_input_with(0, part)
