"""Normalizations over groups of channels, each sample by itself."""

import numpy as np
import onnx_ir as ir

from quantry.errors import ModelError
from quantry.torchfront.lowering.call import Call, fixed
from quantry.torchfront.lowering.elementwise import Lowering
from quantry.torchfront.lowering.graph_writer import GraphWriter


def group_norm(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.group_norm``: each group as one channel of an instance normalization, then gain and offset by channel."""
    shape = [int(size) if isinstance(size, int) else 0 for size in call.first_meta.shape]
    groups = int(call["num_groups"])
    rows = writer.op("Reshape", [call.first, writer.ints([0, groups, -1])])
    normal = _normalized(writer, rows, groups, float(call.get("eps", 1e-5)))
    inner = fixed(call.first_meta.shape[1:], "sizes behind the batch", call.node)
    result = writer.op("Reshape", [normal, writer.ints([shape[0], *inner])])
    return _by_channel(writer, call, result, len(shape))


def instance_norm(writer: GraphWriter, call: Call) -> ir.Value:
    """``aten.instance_norm`` with the statistics of each sample."""
    if not call["use_input_stats"]:
        raise ModelError(
            f"instance_norm must use the statistics of its input, got running ones; in {call.node.name}; make it with "
            "track_running_stats=False"
        )
    channels = int(call.first_meta.shape[1])
    normal = _normalized(writer, call.first, channels, float(call.get("eps", 1e-5)))
    return _by_channel(writer, call, normal, call.first_meta.dim())


def _normalized(writer: GraphWriter, x: ir.Value, channels: int, epsilon: float) -> ir.Value:
    gains = writer.constant(np.ones(channels)), writer.constant(np.zeros(channels))
    return writer.op("InstanceNormalization", [x, *gains], {"epsilon": epsilon})


def _by_channel(writer: GraphWriter, call: Call, x: ir.Value, rank: int) -> ir.Value:
    """Multiply by the gain and add the offset of each channel, where there are any."""
    sizes = [-1, *[1] * (rank - 2)]
    for operator, name in (("Mul", "weight"), ("Add", "bias")):
        value = call[name]
        if value is not None:
            aligned = value if rank == 2 else writer.op("Reshape", [value, writer.ints(sizes)])
            x = writer.op(operator, [x, aligned])
    return x


LOWERINGS: dict[str, Lowering] = {"group_norm": group_norm, "instance_norm": instance_norm}
