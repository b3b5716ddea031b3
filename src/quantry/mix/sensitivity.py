"""How much of each tensor's rounding arrives at the model's outputs, for all tensors from one walk over the model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.data.calibration_data import CalibrationData
from quantry.evaluate.stage import machine_environment
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.memo import Blob, stage
from quantry.mix.downstream import Array, Downstream, Tensors
from quantry.mix.scheme import Scheme
from quantry.numerics.tensor_params import QuantParams
from quantry.plan.stay_float import final_joins
from quantry.recipe import PlanOptions
from quantry.runtime.progress import progress

Floats = npt.NDArray[np.float64]

# Rounding this much weaker than the coarsest at its place only scales what arrives at the outputs: no need to look.
_LINEAR = 1e-2

# An output so much weaker than the others, in power for each element, is taken to be this strong: in few samples, the
# scores of what none of them shows are all but zero.
_VANISHING = 1e-6


@dataclass(frozen=True, eq=False)
class Sensitivity:
    """Errors of the outputs, each caused by one tensor alone.

    Errors of different tensors are nearly uncorrelated, so the power of several is nearly the sum of theirs.

    Attributes:
        tensors: Activations, weights and biases by name; a bias that is not named counts with the weight of its layer.
        outputs: Names of the model's outputs.
        noise: Power of the error relative to that of the output over all samples, [tensors, schemes, outputs].
        local: Power of the tensor's own rounding error relative to its own, [tensors, schemes].
    """

    tensors: tuple[str, ...]
    outputs: tuple[str, ...]
    noise: Floats
    local: Floats

    def of(self, tensor: str, output: int | None = None) -> Floats:
        """Return the error that a tensor causes under each scheme.

        Args:
            tensor: Its name.
            output: Index of the output that counts; None takes the mean of all.
        """
        found = self.noise[self.tensors.index(tensor)]
        return np.asarray(found.mean(axis=-1) if output is None else found[:, output])

    def to_blob(self) -> Blob:
        """Return what the store keeps."""
        meta = {"tensors": list(self.tensors), "outputs": list(self.outputs)}
        return Blob(meta=meta, arrays={"noise": self.noise, "local": self.local})

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Read what `to_blob` returned."""
        meta: Any = blob.meta
        return cls(tuple(meta["tensors"]), tuple(meta["outputs"]), blob.arrays["noise"], blob.arrays["local"])


@stage(name="sensitivity", version=1, environment=machine_environment)
def sensitivity(
    model: FloatModel,
    data: CalibrationData,
    plans: Sequence[QuantPlan],
    params: Sequence[QuantParams],
    tensors: Sequence[str],
) -> Sensitivity:
    """Measure what rounding each tensor alone does to the outputs.

    The float model runs once for each sample with all its tensors kept; then one tensor after the other is rounded and
    the nodes behind it run again. Compared with quantizing layer after layer and running the whole model each time,
    half of the nodes run, nothing is written or loaded in between, and what is found holds for both directions.

    Args:
        model: The float model.
        data: Samples; few are enough, because every element of an output counts.
        plans: Types of all tensors under each scheme.
        params: Scales and zero points under each scheme.
        tensors: Activations, weights and biases to look at; a bias that is not named is rounded with its weight.
    """
    schemes = [Scheme(plan, entry) for plan, entry in zip(plans, params, strict=True)]
    downstream = Downstream(model.model, results_of(model.model.graph))
    biases = {
        weight: tuple(name for name in names if name not in tensors)
        for weight, names in _bias_of_weight(model, schemes[0].plan).items()
    }
    walk = _Walk(model, schemes, downstream, biases)
    shape = (len(tensors), len(schemes))
    noise, local = np.zeros((*shape, len(downstream.results))), np.zeros(shape)
    power, elements = np.zeros(len(downstream.results)), np.zeros(len(downstream.results))
    count = 0
    for sample in progress(data, "sensitivity", data.size):
        known = downstream.run(sample)
        for index, tensor in enumerate(tensors):
            found = walk.measure(tensor, known)
            noise[index] += found[0]
            local[index] += found[1]
        power += [_power(known[name]) for name in downstream.results]
        elements += [known[name].size for name in downstream.results]
        count += 1
    return Sensitivity(tuple(tensors), downstream.results, noise / _reference(power, elements), local / count)


class _Walk:
    """Measures one tensor after the other in one sample."""

    def __init__(
        self,
        model: FloatModel,
        schemes: Sequence[Scheme],
        downstream: Downstream,
        biases: Mapping[str, tuple[str, ...]],
    ) -> None:
        self._initializers = model.model.graph.initializers
        self._schemes = schemes
        self._downstream = downstream
        self._constants: dict[str, list[Tensors]] = {}
        self._biases = biases

    def measure(self, tensor: str, known: Tensors) -> tuple[Floats, Floats]:
        """Return the power of the errors at the outputs, [schemes, outputs], and relative ones at the tensor."""
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
        if tensor not in self._initializers:
            return [{tensor: scheme.rounded(tensor, known[tensor])} for scheme in self._schemes]
        if tensor not in self._constants:
            names = (tensor, *self._biases.get(tensor, ()))
            exact = {name: self._constant(name) for name in names}
            self._constants[tensor] = [
                {name: scheme.rounded(name, values) for name, values in exact.items()} for scheme in self._schemes
            ]
        return self._constants[tensor]

    def _exact(self, variant: Tensors, known: Tensors) -> Tensors:
        return {name: known[name] if name in known else self._constant(name) for name in variant}

    def _constant(self, name: str) -> Array:
        tensor = self._initializers[name].const_value
        assert tensor is not None
        return np.asarray(tensor.numpy(), np.float32)


def _power(values: Array) -> float:
    return float(np.square(values, dtype=np.float64).sum())


def _reference(power: Floats, elements: Floats) -> Floats:
    """Return what the power of errors is divided by: that of the outputs, kept from vanishing beside other outputs."""
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
    """Return the tensors at which computing ends.

    They are the outputs, but where the model ends by joining finished results, such as boxes and scores of a detector,
    the parts of the join: each counts by its own size.
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
    """Return the biases of each layer by its weight."""
    found: dict[str, tuple[str, ...]] = {}
    for node in model.model.graph:
        names = [value.name for value in node.inputs if value is not None and value.name]
        weight = next((name for name in names if name in plan.weights), None)
        biases = tuple(name for name in names if name in plan.biases and name != weight)
        if weight is not None and biases:
            found[weight] = (*found.get(weight, ()), *biases)
    return found
