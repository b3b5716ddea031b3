"""Whose arithmetic computes a quantized model: a value, and an argument of every stage that runs one.

The default computes exactly what the graph says, on integer kernels and look-ups of the same bits. A target brings
others (`quantry.targets.arithmetic`). Stages never look up which one is in force: front doors do, and hand it on.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import onnx
import onnx_ir as ir

from quantry.emit import may_use_exact_integers, use_exact_integers, use_look_ups
from quantry.errors import ModelError
from quantry.graph.quantized_model import QuantizedModel
from quantry.graph.save import weight_bytes
from quantry.memo import Digest, fingerprint
from quantry.runtime.sessions import INLINE_LIMIT_BYTES, run_session, simulation_session

if TYPE_CHECKING:
    import onnxruntime


EvaluatedModel = str | Path | QuantizedModel | ir.Model
"""What is evaluated: the path of an ONNX file, quantized or not, or a model in memory."""


class Arithmetic(ABC):
    """Opens models so that they compute with a certain arithmetic.

    Two arithmetics with equal fingerprints give equal outputs for every model; the fingerprint is part of the key of
    every stage that runs a quantized model.
    """

    one_by_one: ClassVar[bool] = False
    """Whether it is another runtime, which may run one sample at a time only."""

    @abstractmethod
    def open(self, model: EvaluatedModel, threads: int | None = None) -> Any:
        """Return an object with the methods ``get_outputs`` and ``run`` of an onnxruntime session.

        Args:
            model: The model.
            threads: Threads inside one operator; None uses the default of the process.

        Raises:
            ModelError: The runtime does not accept the model.
        """

    @abstractmethod
    def __fingerprint__(self) -> Digest:
        """Return the digest of everything that outputs depend on besides the model and its inputs."""


@dataclass(frozen=True)
class ExactArithmetic(Arithmetic):
    """Computes what the graph says, so that a score does not depend on the machine."""

    def open(self, model: EvaluatedModel, threads: int | None = None) -> Any:
        """Open `exact_session`."""
        return exact_session(model, threads)

    def __fingerprint__(self) -> Digest:
        return fingerprint("exact arithmetic")


EXACT = ExactArithmetic()

_IN_FORCE: ContextVar[Arithmetic] = ContextVar("arithmetic in force", default=EXACT)


@contextmanager
def computing_with(arithmetic: Arithmetic) -> Iterator[None]:
    """Let evaluators and results that are asked inside of the block run models with an arithmetic.

    Args:
        arithmetic: The arithmetic.
    """
    token = _IN_FORCE.set(arithmetic)
    try:
        yield
    finally:
        _IN_FORCE.reset(token)


def arithmetic_in_force() -> Arithmetic:
    """Return the arithmetic of the block of `computing_with` around the caller; for front doors, never for a stage."""
    return _IN_FORCE.get()


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
    graph = model.model if isinstance(model, QuantizedModel) else model
    if isinstance(graph, ir.Model):
        return ir.to_proto(graph) if weight_bytes(graph) <= INLINE_LIMIT_BYTES else None
    try:
        proto = onnx.load(graph, load_external_data=False)
        if any(tensor.data_location == onnx.TensorProto.EXTERNAL for tensor in proto.graph.initializer):
            if weight_bytes(ir.load(graph)) > INLINE_LIMIT_BYTES:
                return None
            onnx.load_external_data_for_model(proto, str(Path(graph).parent))
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
    # Deleting a slice would leave them marked as inputs, which a caller may override.
    while len(model.graph.inputs) > 1:
        model.graph.inputs.pop()
    return model
