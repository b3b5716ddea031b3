r"""A plan applied to a graph: which quantizer each reader of each tensor reads through.

::

    producer -> x -> quantizer of x -----------------> reader
                                   \-> conversion ----> reader that needs another type
    weight ------> quantizer of the weight ----------> readers that the plan names
    bias --------> int32, scale(x) * scale(weight) --> reader

Everything that runs, trains or writes a quantized graph asks this view instead of reading the plan itself, so a
simulation, a training and the written model agree. Writing a graph takes three loops::

    view = QuantizedView(plan, params)
    for quantizer in view.activations:    # insert after the producer of quantizer.tensor
    for quantizer in view.conversions:    # insert after that, in front of quantizer.readers only
    for quantizer in view.constants:      # weights, then biases; quantizer.readers is None for "every reader"

Running a graph node by node takes one question per input: ``view.path("x", "conv1")`` returns the quantizers between
the raw tensor and the node, in order.

A training that holds one quantizer object per scale keys it by ``quantizer.source``: tensors that share a scale have
the same source. It leaves out the quantizer of a tensor for which ``view.keeps_grid(value)`` holds, since quantizing
again with the same scale changes nothing, and builds the one of a derived bias from ``quantizer.derived`` (its input
and its weight), because a bias has to follow their scales while these are trained. `with_scales` does the same for
scales that were trained.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import cached_property

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.graph.quant_plan import DerivedBiasPlan, FixedRange, QuantPlan, SharedRange
from quantry.numerics.bias import derived_bias_params
from quantry.numerics.rounding import fake_quantize
from quantry.numerics.tensor_params import QuantParams, TensorParams
from quantry.recipe import DataType, TensorSpec

_DERIVED_BIAS = TensorSpec(dtype=DataType.INT32)


class Role(Enum):
    """What is quantized."""

    ACTIVATION = "activation"
    CONVERSION = "conversion"
    WEIGHT = "weight"
    BIAS = "bias"


@dataclass(frozen=True, eq=False)
class Quantizer:
    """How one tensor is quantized for its readers.

    Attributes:
        name: Name of its parameters in `QuantParams`: that of the tensor, or that of a conversion.
        tensor: The tensor that is quantized.
        role: What the tensor is.
        spec: Type and scale that the plan asks for; int32 for a derived bias.
        source: Name of the tensor whose scale it uses; `name` unless the scale is shared.
        params: Scale and zero point; None for types that have none, such as float16.
        readers: Names of the nodes that read the tensor through this quantizer; None for all of them.
        derived: Input and weight whose scales give that of a derived bias; None for everything else.
        fixed: Whether the plan fixes the range, as that of a Softmax, so that training must not change the scale.
    """

    name: str
    tensor: str
    role: Role
    spec: TensorSpec
    source: str
    params: TensorParams | None
    readers: frozenset[str] | None = None
    derived: DerivedBiasPlan | None = None
    fixed: bool = False

    @property
    def dtype(self) -> DataType:
        """The type of the quantized tensor."""
        return self.spec.dtype

    def reads(self, node: str) -> bool:
        """Return whether a node reads the tensor through this quantizer."""
        return self.readers is None or node in self.readers

    def round(self, values: npt.ArrayLike) -> npt.NDArray[np.float32]:
        """Return what is left of values after quantizing and dequantizing, as in the deployed model.

        Args:
            values: Real numbers of the tensor's shape. Without `params` they are returned unchanged.
        """
        return np.asarray(values, np.float32) if self.params is None else fake_quantize(values, self.params)


@dataclass(frozen=True, eq=False)
class QuantizedView:
    """Which quantizer each reader of each tensor reads through.

    Attributes:
        plan: Which tensors are quantized.
        params: Their scales and zero points.
    """

    plan: QuantPlan
    params: QuantParams

    @cached_property
    def activations(self) -> tuple[Quantizer, ...]:
        """Quantizers that follow the producers of tensors, in the order of the graph."""
        return tuple(self._activation(name) for name in self.plan.activations)

    @cached_property
    def conversions(self) -> tuple[Quantizer, ...]:
        """Quantizers that follow another one, for the readers that need another type."""
        return tuple(
            Quantizer(
                name,
                conversion.tensor,
                Role.CONVERSION,
                conversion.spec,
                name,
                self.params.tensors.get(name),
                frozenset(conversion.readers),
            )
            for name, conversion in self.plan.conversions.items()
        )

    @cached_property
    def weights(self) -> tuple[Quantizer, ...]:
        """Quantizers of weights; readers that are not named read the float weight."""
        return tuple(
            Quantizer(
                name, name, Role.WEIGHT, weight.spec, name, self.params.tensors.get(name), frozenset(weight.users)
            )
            for name, weight in self.plan.weights.items()
        )

    @cached_property
    def biases(self) -> tuple[Quantizer, ...]:
        """Quantizers of biases, for all their readers."""
        return tuple(self._bias(name) for name in self.plan.biases)

    @property
    def constants(self) -> tuple[Quantizer, ...]:
        """Quantizers of weights, then those of biases."""
        return (*self.weights, *self.biases)

    def __iter__(self) -> Iterator[Quantizer]:
        """Yield all quantizers in the order in which a graph is written."""
        yield from (*self.activations, *self.conversions, *self.constants)

    def get(self, name: str) -> Quantizer | None:
        """Return the quantizer of a tensor or of a conversion, or None where it stays float."""
        return self._by_name.get(name)

    def path(self, tensor: str, node: str) -> tuple[Quantizer, ...]:
        """Return the quantizers between a raw tensor and a node that reads it, in order; none where it stays float.

        Args:
            tensor: Name of an activation, a weight or a bias.
            node: Name of the node; the empty name reads what a user of the model's outputs reads.
        """
        tensor_quantizer = self._by_name.get(tensor)
        converted = self._converted.get((tensor, node))
        return tuple(entry for entry in (tensor_quantizer, converted) if entry is not None and entry.reads(node))

    def keeps_grid(self, value: ir.Value) -> bool:
        """Return whether a tensor only moves values that already lie on its grid.

        That is the output of an operator such as Reshape that shares the scale of its input: quantizing it again
        changes nothing.
        """
        quantizer, producer = self._by_name.get(value.name or ""), value.producer()
        source = None if producer is None else producer.inputs[0]
        source_quantizer = None if source is None else self._by_name.get(source.name or "")
        if quantizer is None or source_quantizer is None or quantizer.source == quantizer.name:
            return False
        return source_quantizer.source == quantizer.source

    def round(self, tensor: str, values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Return what is left of a tensor's values after its own quantizer, or the values where it stays float."""
        quantizer = self._by_name.get(tensor)
        return values if quantizer is None else quantizer.round(values)

    def with_scales(self, changed: Mapping[str, TensorParams]) -> "QuantizedView":
        """Return the view with other parameters for some tensors, and derived biases that follow them.

        Args:
            changed: New parameters by the tensor whose scale it is; tensors that share the scale follow.
        """
        tensors = dict(self.params.tensors)
        for name in tensors:
            source = self.source(name)
            if source in changed:
                tensors[name] = changed[source]
        for bias in self.biases:
            factors = bias.derived
            # Other biases keep their parameters, which the limits of an NPU may have moved off the product of scales.
            if factors is not None and changed.keys() & {self.source(factors.input), self.source(factors.weight)}:
                tensors[bias.name] = derived_bias_params(tensors[factors.input], tensors[factors.weight])
        return QuantizedView(self.plan, replace(self.params, tensors=tensors))

    def source(self, name: str) -> str:
        """Return the tensor whose scale a tensor or a conversion uses: itself unless the scale is shared."""
        quantizer = self._by_name.get(name)
        return name if quantizer is None else quantizer.source

    @cached_property
    def _by_name(self) -> dict[str, Quantizer]:
        return {quantizer.name: quantizer for quantizer in self}

    @cached_property
    def _converted(self) -> dict[tuple[str, str], Quantizer]:
        return {(entry.tensor, node): entry for entry in self.conversions for node in entry.readers or ()}

    def _activation(self, name: str) -> Quantizer:
        source = self.plan.root(name)
        planned = self.plan.activations[source]
        assert not isinstance(planned, SharedRange)
        params = self.params.tensors.get(name)
        fixed = isinstance(planned, FixedRange)
        return Quantizer(name, name, Role.ACTIVATION, planned.spec, source, params, fixed=fixed)

    def _bias(self, name: str) -> Quantizer:
        planned, params = self.plan.biases[name], self.params.tensors.get(name)
        if isinstance(planned, DerivedBiasPlan):
            return Quantizer(name, name, Role.BIAS, _DERIVED_BIAS, name, params, derived=planned)
        return Quantizer(name, name, Role.BIAS, planned.spec, name, params)
