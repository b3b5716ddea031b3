"""Input and result of a tuning algorithm, and the stages that turn a result into a model and its parameters."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from quantry.data.calibration_data import CalibrationData
from quantry.errors import InternalError
from quantry.graph.float_model import FloatModel
from quantry.graph.quant_plan import QuantPlan
from quantry.graph.weights import tensor_from_array
from quantry.memo import Blob, stage
from quantry.notes import Note
from quantry.numerics.tensor_params import QuantParams
from quantry.recipe import NpuLimits
from quantry.scale.npu import refine_for_npu

_WEIGHT = "weight/"
_PARAMS = "params/"


@dataclass(frozen=True, eq=False)
class TuneTask:
    """A quantization to improve.

    Attributes:
        reference: The float model whose outputs are the target.
        model: The same graph with the weights to start from.
        plan: Which tensors are quantized.
        params: With which scales and zero points.
        data: Samples.
    """

    reference: FloatModel
    model: FloatModel
    plan: QuantPlan
    params: QuantParams
    data: CalibrationData

    def samples(self, count: int | None) -> CalibrationData:
        """Return the first samples; all of them for None."""
        return self.data if count is None else self.data.take(count)


@dataclass(frozen=True, eq=False)
class Tuned:
    """New values of weights and biases, and the scales and zero points to round them with.

    Attributes:
        weights: float32 arrays by initializer name, only of those that changed. The emit stage rounds them to the tuned
            integers like any other weight.
        params: Scales and zero points of all tensors, changed or not.
        notes: What was done, and what the user should know.
    """

    weights: Mapping[str, npt.NDArray[np.float32]] = field(default_factory=dict)
    params: QuantParams = QuantParams({}, ())
    notes: tuple[Note, ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "weights", MappingProxyType(dict(self.weights)))
        object.__setattr__(self, "notes", tuple(self.notes))
        # The notes of parameters belong to the stage that computed them.
        object.__setattr__(self, "params", replace(self.params, notes=()))

    def to_blob(self) -> Blob:
        """Return the stored form."""
        params = self.params.to_blob()
        arrays: dict[str, npt.NDArray[Any]] = {_PARAMS + name: array for name, array in params.arrays.items()}
        arrays |= {_WEIGHT + name: np.asarray(array, np.float32) for name, array in self.weights.items()}
        meta = {"weights": list(self.weights), "params": dict(params.meta)}
        return Blob(meta=meta, arrays=arrays, notes=self.notes)

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the value that `to_blob` was called on."""
        meta: Any = blob.meta
        arrays = {name.removeprefix(_PARAMS): blob.arrays[name] for name in blob.arrays if name.startswith(_PARAMS)}
        return cls(
            weights={name: blob.arrays[_WEIGHT + name] for name in meta["weights"]},
            params=QuantParams.from_blob(Blob(meta["params"], arrays)),
            notes=blob.notes,
        )


# Neither of the two stages is stored: they take less time than reading a model.
@stage(name="tuned_model", version=1, stored=False)
def tuned_model(model: FloatModel, tuned: Tuned) -> FloatModel:
    """Return a copy of the model with the tuned weights and biases.

    Args:
        model: The model whose weights were tuned.
        tuned: The result of the tuning step.
    """
    copy = model.model.clone()
    for name, values in tuned.weights.items():
        value = copy.graph.initializers.get(name)
        if value is None or value.const_value is None:
            raise InternalError(f"a tuned weight must be an initializer of the model, got {name!r}; in tuned_model")
        if tuple(value.const_value.shape.numpy()) != values.shape:
            raise InternalError(
                f"a tuned weight must keep its shape {tuple(value.const_value.shape.numpy())}, got {values.shape}; "
                f"weight {name!r}, in tuned_model"
            )
        value.const_value = tensor_from_array(np.asarray(values, value.const_value.dtype.numpy()), name)
    return FloatModel(copy)


@stage(name="tuned_params", version=2, stored=False)
def tuned_params(model: FloatModel, plan: QuantPlan, tuned: Tuned, limits: NpuLimits | None) -> QuantParams:
    """Return the scales and zero points after a tuning step, within an NPU's limits if there are any.

    Args:
        model: The float model that was planned.
        plan: Which tensors are quantized.
        tuned: The result of the tuning step.
        limits: Limits on power-of-two positions, or None.
    """
    return tuned.params if limits is None else refine_for_npu(model.model, plan, tuned.params, limits)
