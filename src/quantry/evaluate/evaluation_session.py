"""Sessions for scores: exactly what the quantized graph says, on integer kernels and look-ups of the same bits."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
import onnx_ir as ir

from quantry.emit import may_use_exact_integers, use_exact_integers, use_look_ups
from quantry.errors import ModelError
from quantry.graph.quantized_model import QuantizedModel
from quantry.graph.save import weight_bytes
from quantry.runtime.sessions import INLINE_LIMIT_BYTES, run_session, simulation_session

if TYPE_CHECKING:
    import onnxruntime


EvaluatedModel = str | Path | QuantizedModel
"""What is evaluated: the path of an ONNX file, quantized or not, or a quantized model in memory."""

Opener = Callable[[EvaluatedModel, int | None], Any]
"""Opens a model with a number of threads and returns an object with ``get_outputs`` and ``run`` of a session."""

_OPENER: ContextVar[Opener | None] = ContextVar("opener of evaluated models", default=None)
_ONE_BY_ONE: ContextVar[bool] = ContextVar("whether samples run one at a time", default=False)


@contextmanager
def opened_by(opener: Opener, *, one_by_one: bool = False) -> Iterator[None]:
    """Let something else than `exact_session` open the models that are evaluated inside of the block.

    Args:
        opener: Opens them.
        one_by_one: It is another runtime, which may run one sample at a time only.
    """
    tokens = _OPENER.set(opener), _ONE_BY_ONE.set(one_by_one)
    try:
        yield
    finally:
        _OPENER.reset(tokens[0])
        _ONE_BY_ONE.reset(tokens[1])


def runs_one_by_one() -> bool:
    """Return whether only one sample may run at a time."""
    return _ONE_BY_ONE.get()


def evaluation_session(model: EvaluatedModel, threads: int | None = None) -> "onnxruntime.InferenceSession":
    """Open the session that a score comes from: `exact_session`, unless `opened_by` says otherwise.

    Args:
        model: The model.
        threads: Threads inside one operator; None uses the default of the process.

    Raises:
        ModelError: onnxruntime does not accept the model.
    """
    opener: Any = _OPENER.get() or exact_session
    session: onnxruntime.InferenceSession = opener(model, threads)
    return session


def exact_session(model: EvaluatedModel, threads: int | None = None) -> "onnxruntime.InferenceSession":
    """Open a session that computes what the graph says, so that a score does not depend on the machine.

    Power-of-two int8 models run on integer kernels, two to four times as fast as with their Q/DQ pairs and with the
    same bits; see `quantry.emit.exact_integers`. Other pairs become look-ups; see `quantry.emit.look_ups`.

    Args:
        model: The model.
        threads: Threads inside one operator; None uses the default of the process.

    Raises:
        ModelError: onnxruntime does not accept the model.
    """
    proto = _small_model(model)
    if proto is not None and _use_fast_form(proto):
        with suppress(ModelError):  # below, the message names the user's file
            content = proto.SerializeToString()
            return simulation_session(content, threads=threads, interleaved=True, look_ups=True)
    source = Path(model) if isinstance(model, str) else model
    return simulation_session(source, threads=threads, interleaved=True)


def look_up_session(model: ir.Model, threads: int | None = None) -> "onnxruntime.InferenceSession":
    """Open a session that computes what a graph in memory says, with pairs and functions of them as look-ups.

    Args:
        model: The model.
        threads: Threads inside one operator; None uses the default of the process.

    Raises:
        ModelError: onnxruntime does not accept the model.
    """
    if weight_bytes(model) <= INLINE_LIMIT_BYTES:
        proto = ir.to_proto(model)
        if use_look_ups(proto):
            return simulation_session(proto.SerializeToString(), threads=threads, interleaved=True, look_ups=True)
    return simulation_session(model, threads=threads, interleaved=True)


def _use_fast_form(proto: onnx.ModelProto) -> bool:
    """Edit a model so that it computes the same bits faster; return whether anything was replaced."""
    integers = False
    if may_use_exact_integers(proto) and integer_kernels_agree():
        graph = ir.from_proto(proto)
        integers = use_exact_integers(graph) > 0
        if integers:
            proto.CopyFrom(ir.to_proto(graph))
    # What integer kernels do not compute, such as 16 bits and scales that are not powers of two.
    return use_look_ups(proto) > 0 or integers


def _small_model(model: EvaluatedModel) -> onnx.ModelProto | None:
    """Return a copy with its weights; None if it is so large that it is mapped, or cannot be read."""
    if isinstance(model, QuantizedModel):
        return ir.to_proto(model.model) if weight_bytes(model.model) <= INLINE_LIMIT_BYTES else None
    try:
        proto = onnx.load(model, load_external_data=False)
        if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in proto.graph.initializer):
            if weight_bytes(ir.load(model)) > INLINE_LIMIT_BYTES:
                return None
            onnx.load_external_data_for_model(proto, str(Path(model).parent))
    except Exception:  # onnx's exceptions share no base class; the session then says what is wrong with the file
        return None
    return proto if proto.ByteSize() <= INLINE_LIMIT_BYTES else None


# Extreme weights and inputs: a processor whose 8-bit products overflow 16 bits (x86 before VNNI) shows it here. The
# bias of the first convolution is finer than its accumulator.
_PROBE = """
<ir_version: 8, opset_import: ["" : 13]>
probe (float[1,32,9,9] x, int8[32,32,3,3] w, int8[32,1,3,3] d, int8[10,2592] m, int8[32] b)
=> (float[1,10] y, float[1,32,9,9] z)
<float fine = {0.0078125}, float s = {0.125}, float wide = {8}, float coarse = {64},
 uint8 middle = {128}, int8 zero = {0}>
{
    xq = QuantizeLinear(x, s, middle)
    xd = DequantizeLinear(xq, s, middle)
    wd = DequantizeLinear(w, s, zero)
    bd = DequantizeLinear(b, fine, zero)
    a = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (xd, wd, bd)
    ar = Relu(a)
    aq = QuantizeLinear(ar, coarse, middle)
    ad = DequantizeLinear(aq, coarse, middle)
    dd = DequantizeLinear(d, s, zero)
    c = Conv <kernel_shape = [3, 3], pads = [1, 1, 1, 1], group = 32> (xd, dd)
    cq = QuantizeLinear(c, wide, middle)
    cd = DequantizeLinear(cq, wide, middle)
    e = Add(ad, cd)
    eq = QuantizeLinear(e, coarse, middle)
    ed = DequantizeLinear(eq, coarse, middle)
    f = Sigmoid(xd)
    fq = QuantizeLinear(f, fine, middle)
    fd = DequantizeLinear(fq, fine, middle)
    g = Mul(ed, fd)
    gq = QuantizeLinear(g, coarse, middle)
    z = DequantizeLinear(gq, coarse, middle)
    v = Flatten(xd)
    vq = QuantizeLinear(v, s, middle)
    vd = DequantizeLinear(vq, s, middle)
    md = DequantizeLinear(m, s, zero)
    n = Gemm <transB = 1> (vd, md)
    nq = QuantizeLinear(n, wide, middle)
    y = DequantizeLinear(nq, wide, middle)
}
"""


@cache  # A property of the machine and of onnxruntime; tested once per process, in about 30 ms.
def integer_kernels_agree() -> bool:
    """Return whether this machine's integer kernels give the results of the float operators."""
    exact, fast = _probe(), _probe()
    if not use_exact_integers(fast):
        return False
    sessions = simulation_session(exact, threads=1), simulation_session(fast, threads=1)
    generator = np.random.default_rng(0)
    shape = (1, 32, 9, 9)
    inputs = (generator.normal(0, 8, shape), np.where(generator.random(shape) < 0.5, -20, 20), np.full(shape, 20))
    for values in inputs:
        expected, got = (run_session(session, {"x": values.astype(np.float32)}) for session in sessions)
        if not all(np.array_equal(got[name], value) for name, value in expected.items()):
            return False
    return True


def _probe() -> ir.Model:
    model = ir.from_onnx_text(_PROBE)
    generator = np.random.default_rng(1)
    for value in model.graph.inputs[1:]:
        assert value.shape is not None
        values = generator.choice(np.array([-128, 127], np.int8), value.shape.numpy())
        if value.name == "w":
            values[0] = 127
        elif value.name == "m":
            values //= 4  # 2592 products of full size would not fit 24 bits
        elif value.name == "b":
            values = generator.integers(-128, 128, values.shape).astype(np.int8)
        value.const_value = ir.tensor(values, name=value.name)
        model.graph.register_initializer(value)
    del model.graph.inputs[1:]
    return model
