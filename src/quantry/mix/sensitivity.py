"""How much of each tensor's rounding error reaches the model's outputs, for all tensors in one pass over the model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.data.calibration_data import CalibrationData
from quantry.emit import emit
from quantry.evaluate.stage import machine_environment
from quantry.execute.quantized_view import QuantizedView
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import OwnRange, QuantPlan
from quantry.memo import Blob, stage
from quantry.mix.downstream import Array, Downstream, Tensors
from quantry.numerics.tensor_params import QuantParams
from quantry.plan.stay_float import final_joins
from quantry.recipe import DataType, EmitOptions, PlanOptions, TensorSpec, VitisDialect, VitisQdq
from quantry.runtime.progress import progress
from quantry.runtime.sessions import run_session, simulation_session

Floats = npt.NDArray[np.float64]

# Below this share of the error of the coarsest type, the effect on the outputs is proportional to the error, so the
# effect of the coarsest type is scaled instead of running the model again.
_LINEAR = 1e-2

# An output whose power per element is below this share of the strongest output's counts as this strong. With few
# samples, the scores of classes that none of them contains are almost zero, and any error there would look huge.
_VANISHING = 1e-6


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Errors of the outputs, each caused by rounding one tensor.

    Errors of different tensors are nearly uncorrelated, so the error of several is nearly the sum of theirs.

    Attributes:
        tensors: Names of activations, weights and biases; a bias that is not listed counts with its weight.
        outputs: Names of the model's outputs.
        noise: Power of the error relative to that of the output over all samples, [tensors, plans, outputs].
        local: Power of the tensor's own rounding error relative to the tensor's, [tensors, plans].
    """

    tensors: tuple[str, ...]
    outputs: tuple[str, ...]
    noise: Floats
    local: Floats

    def of(self, tensor: str, output: int | None = None) -> Floats:
        """Return the error that a tensor causes under each plan.

        Args:
            tensor: Its name.
            output: Index of the output that counts; None takes the mean of all.
        """
        found = self.noise[self.tensors.index(tensor)]
        return np.asarray(found.mean(axis=-1) if output is None else found[:, output])

    def to_blob(self) -> Blob:
        """Return the stored form."""
        meta = {"tensors": list(self.tensors), "outputs": list(self.outputs)}
        return Blob(meta=meta, arrays={"noise": self.noise, "local": self.local})

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the value that `to_blob` was called on."""
        meta: Any = blob.meta
        return cls(tuple(meta["tensors"]), tuple(meta["outputs"]), blob.arrays["noise"], blob.arrays["local"])


@stage(name="sensitivity", version=2, environment=machine_environment)
def sensitivity(
    model: FloatModel,
    data: CalibrationData,
    plans: Sequence[QuantPlan],
    params: Sequence[QuantParams],
    tensors: Sequence[str],
) -> Sensitivity:
    """Measure how rounding each tensor on its own changes the outputs.

    The float model runs once per sample with all tensors kept. Then one tensor after the other is rounded, and only the
    nodes after it run again. Compared with quantizing one layer at a time and running the whole model, half of the
    nodes run and no model is written or loaded in between.

    Args:
        model: The float model.
        data: Samples; few are enough, because every element of an output counts.
        plans: The type of every tensor under each plan.
        params: Scales and zero points for each plan.
        tensors: Activations, weights and biases to measure; a bias that is not listed is rounded with its weight.
    """
    views = [QuantizedView(plan, entry) for plan, entry in zip(plans, params, strict=True)]
    downstream = Downstream(model.model, results_of(model.model.graph))
    biases = {
        weight: tuple(name for name in names if name not in tensors)
        for weight, names in _bias_of_weight(model, plans[0]).items()
    }
    measurement = _Measurement(model, views, downstream, biases)
    shape = (len(tensors), len(views))
    noise, local = np.zeros((*shape, len(downstream.results))), np.zeros(shape)
    power, elements = np.zeros(len(downstream.results)), np.zeros(len(downstream.results))
    count = 0
    for sample in progress(data, "sensitivity", data.size):
        known = downstream.run(sample)
        for index, tensor in enumerate(tensors):
            found = measurement.errors(tensor, known)
            noise[index] += found[0]
            local[index] += found[1]
        power += [_power(known[name]) for name in downstream.results]
        elements += [known[name].size for name in downstream.results]
        count += 1
    return Sensitivity(tuple(tensors), downstream.results, noise / _reference(power, elements), local / count)


class _Measurement:
    """Measures one tensor after the other in one sample."""

    def __init__(
        self,
        model: FloatModel,
        views: Sequence[QuantizedView],
        downstream: Downstream,
        biases: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._initializers = model.model.graph.initializers
        self._views = views
        self._downstream = downstream
        self._constants: dict[str, list[Tensors]] = {}
        self._biases = biases

    def errors(self, tensor: str, known: Tensors) -> tuple[Floats, Floats]:
        """Return the power of the errors at the outputs, [plans, outputs], and the relative error of the tensor."""
        variants = self._variants(tensor, known)
        local = np.array([_largest_error(variant, self._exact(variant, known)) for variant in variants])
        noise = np.zeros((len(variants), len(self._downstream.results)))
        order = np.argsort(-local)
        coarsest = int(order[0])
        for index in order:
            if local[index] == 0:
                continue
            if index != coarsest and local[index] < _LINEAR * local[coarsest]:
                noise[index] = noise[coarsest] * (local[index] / local[coarsest])
                continue
            changed = self._downstream.changed(known, variants[index])
            for place, name in enumerate(self._downstream.results):
                if name in changed:
                    noise[index, place] = _power(np.subtract(changed[name], known[name], dtype=np.float64))
        return noise, local

    def _variants(self, tensor: str, known: Tensors) -> list[Tensors]:
        """Return the rounded tensor under each plan; a weight together with its biases."""
        if tensor not in self._initializers:
            return [{tensor: rounded(view, tensor, known[tensor])} for view in self._views]
        if tensor not in self._constants:
            names = (tensor, *self._biases.get(tensor, ()))
            exact = {name: self._constant(name) for name in names}
            self._constants[tensor] = [
                {name: rounded(view, name, values) for name, values in exact.items()} for view in self._views
            ]
        return self._constants[tensor]

    def _exact(self, variant: Tensors, known: Tensors) -> Tensors:
        return {name: known[name] if name in known else self._constant(name) for name in variant}

    def _constant(self, name: str) -> Array:
        tensor = self._initializers[name].const_value
        assert tensor is not None
        return np.asarray(tensor.numpy(), np.float32)


def rounded(view: QuantizedView, tensor: str, values: Array) -> Array:
    """Return what is left of a tensor's values after its quantizer, whatever its type; all if it stays float.

    Args:
        view: Which tensors are quantized, and how.
        tensor: Name of an activation, a weight or a bias.
        values: Its values.
    """
    quantizer = view.get(tensor)
    if quantizer is None:
        return values
    return _rounding(quantizer.spec)(values) if quantizer.params is None else quantizer.round(values)


# Opening the session takes 5 ms, and it is used for every tensor and sample.
@cache
def _rounding(spec: TensorSpec) -> Callable[[Array], Array]:
    """Return a function that rounds to a type without scales: it runs the nodes that the emit stage writes."""
    if spec.dtype == DataType.FLOAT16:
        return lambda values: values.astype(np.float16).astype(np.float32)
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("Identity", [x], name="copy")
    node.outputs[0].name = "y"
    node.outputs[0].type = ir.TensorType(ir.DataType.FLOAT)
    graph = ir.Graph([x], node.outputs, nodes=[node], opset_imports={"": 17}, name="rounding")
    plan = QuantPlan({"x": OwnRange(spec)})
    options = EmitOptions(VitisQdq(VitisDialect.QUARK))
    model = emit(FloatModel(ir.Model(graph, ir_version=8)), plan, QuantParams(), options, {})
    session = simulation_session(model.to_bytes(), threads=1)
    return lambda values: np.asarray(run_session(session, {"x": values})["y"], np.float32)


def _power(values: Array) -> float:
    return float(np.square(values, dtype=np.float64).sum())


def _reference(power: Floats, elements: Floats) -> Floats:
    """Return the power that errors are divided by: that of each output, but at least a share of the strongest."""
    mean = power / np.maximum(elements, 1)
    floor = _VANISHING * (mean.max() if mean.size else 0.0)
    reference = np.maximum(mean, floor) * np.maximum(elements, 1)
    return np.where(reference > 0, reference, 1.0)


def _largest_error(variant: Tensors, exact: Mapping[str, Array]) -> float:
    """Return the relative error of a tensor; of a weight with its bias, the larger of the two."""
    return max(_relative_error(values, exact[name]) for name, values in variant.items())


def _relative_error(found: Array, exact: Array) -> float:
    reference, error = _power(exact), _power(np.subtract(found, exact, dtype=np.float64))
    return error / reference if reference else error


def results_of(graph: ir.Graph) -> tuple[str, ...]:
    """Return the tensors at which computation ends.

    These are the outputs. If the model ends by joining finished results, such as the boxes and scores of a detector,
    they are the parts that are joined, so that each counts by its own size.
    """
    tail = final_joins(graph, PlanOptions())
    found: dict[str, None] = {}
    for node in graph:
        if node.name in tail:
            for value in node.inputs:
                producer = None if value is None else value.producer()
                if value is not None and value.name and producer is not None and producer.name not in tail:
                    found[value.name] = None
    for value in graph.outputs:
        producer = value.producer()
        if value.name and (producer is None or producer.name not in tail):
            found[value.name] = None
    return tuple(found)


def _bias_of_weight(model: FloatModel, plan: QuantPlan) -> dict[str, tuple[str, ...]]:
    """Return the biases of each layer by the name of its weight."""
    found: dict[str, tuple[str, ...]] = {}
    for node in model.model.graph:
        names = [value.name for value in node.inputs if value is not None and value.name]
        weight = next((name for name in names if name in plan.weights), None)
        biases = tuple(name for name in names if name in plan.biases and name != weight)
        if weight is not None and biases:
            found[weight] = (*found.get(weight, ()), *biases)
    return found
