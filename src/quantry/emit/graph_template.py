"""The bytes of a written graph, reused for other parameters.

Trials that differ only in scales and zero points have the same graph: the same nodes, names and shapes. Only the data
of some initializers and the model's metadata differ, so the bytes of the graph are created once::

    first     float model, plan, parameters -> graph -> bytes of the graph, headers of the weights
    again     other parameters              ->          the same bytes, data of the weights from the parameters

The result is the same file, byte for byte, as writing the graph again.
"""

import threading
from collections import deque
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Self
from weakref import WeakKeyDictionary, ref

import numpy as np
import onnx
import onnx_ir as ir

from quantry.emit.graph_editor import Origin, Part, as_tensor
from quantry.errors import InternalError
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.graph.save import ModelParts
from quantry.notes import Note
from quantry.numerics.rounding import quantize_array
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.recipe import DataType, EmitOptions, VitisQdq
from quantry.scale.weights import measure_constant

_KEPT_FOR_ONE_MODEL = 4
_SMALLEST_WHOLE_BYTES = 8

Signature = Hashable
"""The part of parameters that determines the graph."""


@dataclass(frozen=True, eq=False)
class GraphTemplate:
    """The bytes of a graph, and the origin of its weights' data.

    Attributes:
        parts: The serialized model, without what depends on parameters.
        origins: By name of a weight, the parameters its data is computed from; the data of other weights is constant.
        notes: Messages for the user.
    """

    parts: ModelParts
    origins: Mapping[str, Origin]
    notes: tuple[Note, ...]

    @classmethod
    def of(cls, parts: ModelParts, origins: Mapping[str, Origin], notes: tuple[Note, ...]) -> Self:
        """Return the template of a model, without references to anything it does not need.

        Args:
            parts: The serialized model.
            origins: By name of a weight, the parameters its data is computed from.
            notes: Messages for the user.
        """
        weights = tuple(
            replace(tensor, data=_unknown) if tensor.name in origins else tensor for tensor in parts.weights
        )
        return cls(replace(parts, weights=weights), origins, notes)

    def filled(self, model: FloatModel, params: QuantParams, metadata: Mapping[str, str]) -> ModelParts:
        """Return the serialized model for other parameters.

        Args:
            model: The float model.
            params: Scales and zero points with the same signature.
            metadata: Entries of the model's metadata.
        """
        head = onnx.ModelProto()
        head.CopyFrom(self.parts.head)
        head.producer_version = metadata.get("quantry.version", "")
        del head.metadata_props[:]
        for key, value in sorted(metadata.items()):
            head.metadata_props.add(key=key, value=value)
        return ModelParts(
            head,
            self.parts.graph,
            tuple(
                replace(tensor, data=partial(_data, origin, model.model, params.tensors[origin.tensor]))
                if (origin := self.origins.get(tensor.name)) is not None
                else tensor
                for tensor in self.parts.weights
            ),
        )


def signature(params: QuantParams, options: EmitOptions) -> Signature:
    """Return what determines the graph that is written for parameters, besides model and plan.

    Args:
        params: Scales and zero points.
        options: The format options.
    """
    positions = isinstance(options.format, VitisQdq)
    return options, tuple((name, *_shape_of(entry, positions=positions)) for name, entry in params.tensors.items())


def _shape_of(params: TensorParams, *, positions: bool) -> tuple[Hashable, ...]:
    return (
        params.dtype,
        params.axis,
        params.group,
        params.scale.shape,
        # int32 without zero point has a native operator; with zero point it has none.
        params.dtype == DataType.INT32 and bool(params.zero_point.any()),
        params.position if positions else None,
    )


class TemplateCache:
    """Templates of the float models that are in memory, the latest few of each.

    The memo cannot do this: the results differ in every scale. On the demo detector, a search of 16 calibration trials
    takes 2.5 s of CPU time with templates and 3.1 s without.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        # Entries go with their float model; a plan that is gone never matches again.
        self._kept: WeakKeyDictionary[FloatModel, deque[tuple[ref[QuantPlan], Signature, GraphTemplate]]] = (
            WeakKeyDictionary()
        )

    def find(self, model: FloatModel, plan: QuantPlan, signature: Signature) -> GraphTemplate | None:
        """Return the template for a model, a plan and a signature, or None."""
        with self._lock:
            entries = list(self._kept.get(model, ()))
        return next(
            (
                template
                for of_plan, its_signature, template in entries
                if of_plan() is plan and its_signature == signature
            ),
            None,
        )

    def keep(self, model: FloatModel, plan: QuantPlan, made_for: Signature, template: GraphTemplate) -> None:
        """Store a template as long as its float model exists, unless newer ones replace it."""
        with self._lock:
            entries = self._kept.setdefault(model, deque(maxlen=_KEPT_FOR_ONE_MODEL))
            entries.append((ref(plan), made_for, template))


def _data(origin: Origin, model: ir.Model, params: TensorParams) -> bytes:
    """Return the bytes of an initializer in ONNX's encoding."""
    if origin.part is Part.SCALE:
        return np.asarray(params.scale, "<f4").tobytes()
    if origin.part is Part.ZERO_POINT:
        return _packed(params.zero_point, params.dtype)
    return _packed(measure_constant(model, origin.tensor, partial(quantize_array, params=params)), params.dtype)


def _unknown() -> bytes:
    raise InternalError("data that depends on parameters must be filled in before it is written; in GraphTemplate")


def _packed(integers: np.ndarray, dtype: DataType) -> bytes:
    if dtype.bits < _SMALLEST_WHOLE_BYTES or dtype.is_float8:
        return as_tensor(integers, dtype, "packed").tobytes()
    return integers.astype(np.dtype(dtype.value).newbyteorder("<"), copy=False).tobytes()
