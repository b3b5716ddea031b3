"""The stage "body_calls": what the bodies of If, Loop and Scan read when the float model runs.

These values are the calibration data of a body, which is then quantized as a model of its own. The main graph returns
what its control flow reads. Loops are run here, one run of the body after the other, so that every run is seen,
whatever the number of runs and the sizes of states.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import onnx_ir as ir

from quantry.data.calibration_data import CalibrationData
from quantry.errors import DataError, ModelError
from quantry.graph.bodies import BodyPlace, Call, bodies_with_layers, body_model, body_of, outer_values, state_count
from quantry.graph.float_model import KEEP_BELOW_BYTES, FloatModel
from quantry.graph.segments import NUMPY_TYPES, segment_of
from quantry.memo import Blob, stage
from quantry.notes import Note
from quantry.recipe import ObserveOptions
from quantry.runtime.environment import depends_on, environment
from quantry.runtime.progress import progress
from quantry.runtime.sessions import SessionOptions, open_session, run_session

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

_MOST_CALLS = 256
"""Calls of one body that are kept, evenly spread: each is one sample of its calibration data."""

_MOST_BYTES = 256_000_000
"""Size of the calls of one body that are kept."""

_MOST_ROUNDS = 256
"""Rounds of a loop that are run for one sample; each is a call into onnxruntime."""


@dataclass(frozen=True)
class BodyCalls:
    """What each body read.

    Attributes:
        calls: For each body, what it read each time; only bodies that ran.
        reasons: For the others, why nothing is known about them.
        notes: Messages for the user.
    """

    calls: Mapping[BodyPlace, tuple[Call, ...]]
    reasons: Mapping[BodyPlace, str]
    notes: tuple[Note, ...] = field(default=(), compare=False)

    def to_blob(self) -> Blob | None:
        """Return the stored form, or None if it is too large to store."""
        arrays = {
            f"{number}_{index}_{name}": array
            for number, calls in enumerate(self.calls.values())
            for index, call in enumerate(calls)
            for name, array in call.items()
        }
        if sum(array.nbytes for array in arrays.values()) >= KEEP_BELOW_BYTES:
            return None
        meta = {
            "calls": [[body_place.node, body_place.attribute, len(calls)] for body_place, calls in self.calls.items()],
            "names": [list(calls[0]) for calls in self.calls.values()],
            "reasons": [[body_place.node, body_place.attribute, reason] for body_place, reason in self.reasons.items()],
        }
        return Blob(meta, arrays, notes=self.notes)

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return the calls that `to_blob` stored."""
        meta: Any = blob.meta
        calls = {
            BodyPlace(node, attribute): tuple(
                {name: blob.arrays[f"{number}_{index}_{name}"] for name in meta["names"][number]}
                for index in range(count)
            )
            for number, (node, attribute, count) in enumerate(meta["calls"])
        }
        reasons = {BodyPlace(node, attribute): reason for node, attribute, reason in meta["reasons"]}
        return cls(calls, reasons, blob.notes)


def _environment(arguments: Mapping[str, Any]) -> Mapping[str, str]:
    return environment(libraries=("onnxruntime", "numpy"), devices=arguments["options"].providers)


@stage(name="body_calls", version=1, environment=_environment)
def body_calls(model: FloatModel, data: CalibrationData, options: ObserveOptions) -> BodyCalls:
    """Return what the bodies with layers in the main graph read while the model runs over the data.

    Args:
        model: The float model.
        data: Samples, fed one at a time.
        options: Where to run.

    Raises:
        ModelError: onnxruntime cannot load the model.
        DataError: onnxruntime cannot run it on a sample.
    """
    graph = model.model.graph
    reasons: dict[BodyPlace, str] = {}
    runners: list[_Runner] = []
    for node, body_place in bodies_with_layers(graph):
        runner = _Runner(model.model, node, body_place, options.providers)
        reason = runner.obstacle()
        if reason is None:
            runners.append(runner)
        else:
            reasons[body_place] = reason
    if runners:
        _watch(model.model, data, options.providers, runners)
    calls = {runner.place: tuple(runner.kept.calls) for runner in runners if runner.kept.calls and not runner.failure}
    reasons |= {runner.place: runner.why_nothing() for runner in runners if runner.place not in calls}
    notes = tuple(note for runner in runners if runner.place in calls for note in runner.notes())
    return BodyCalls(calls, reasons, notes)


@stage(name="body_as_model", version=1, environment=depends_on("onnx", "onnx_ir"))
def body_as_model(model: FloatModel, body_place: BodyPlace, calls: BodyCalls | None = None) -> FloatModel:
    """Return a body as a model whose inputs are what it reads.

    Args:
        model: The model that contains it.
        body_place: Where it is.
        calls: What it read; None if only what the model declares about its inputs is known.

    Raises:
        ModelError: Type or rank of an input is unknown.
    """
    return FloatModel(body_model(model.model, body_place, () if calls is None else calls.calls[body_place]))


def _watch(model: ir.Model, data: CalibrationData, providers: Sequence[str], runners: Sequence["_Runner"]) -> None:
    read_names = {name for runner in runners for name in runner.reads}
    input_names = {value.name for value in model.graph.inputs}
    observed_names = frozenset(read_names - input_names)
    session: InferenceSession | None = None
    if observed_names:
        segment = segment_of(model, list(model.graph), observed_names, frozenset())
        session = open_session(segment, SessionOptions.float_segment(providers))
    for sample in progress(data, "observing bodies", data.size):
        values: dict[str, Any] = dict(sample)
        if session is not None:
            fed = {entry.name: sample[entry.name] for entry in session.get_inputs()}
            values |= run_session(session, fed)
        for runner in runners:
            runner.watch(values)


class _Kept:
    """Some of the calls of a body, evenly spread, within limits of number and size."""

    def __init__(self) -> None:
        self.seen = 0
        self._step = 1
        self._found: list[tuple[int, Call]] = []

    @property
    def calls(self) -> list[Call]:
        return [call for _, call in self._found]

    def add(self, call: Call) -> None:
        if self.seen % self._step == 0:
            self._found.append((self.seen, call))
        self.seen += 1
        while len(self._found) > _MOST_CALLS or (len(self._found) > 1 and self._bytes() > _MOST_BYTES):
            self._step *= 2
            self._found = [(index, call) for index, call in self._found if index % self._step == 0]

    def _bytes(self) -> int:
        return sum(array.nbytes for _, call in self._found for array in call.values())


class _Runner:
    """Finds the calls of one body in the values of the main graph."""

    def __init__(self, model: ir.Model, node: ir.Node, body_place: BodyPlace, providers: Sequence[str]) -> None:
        self.place = body_place
        self.kept = _Kept()
        self.failure = ""
        self._model, self._node, self._providers = model, node, providers
        self._body = body_of(node, body_place.attribute)
        self._outer = [value for value in outer_values(self._body) if not _is_constant(value)]
        self._fixed = {
            value.name or "": value.const_value.numpy()
            for value in node.inputs
            if value is not None and _is_constant(value) and value.const_value is not None
        }
        self._session: InferenceSession | None = None
        self._stopped = self._unusable = False

    @property
    def reads(self) -> list[str]:
        """Names of the tensors of the main graph that decide about the calls."""
        inputs = (value for value in self._node.inputs if value is not None and not _is_constant(value))
        return [value.name for value in (*inputs, *self._outer) if value.name]

    def obstacle(self) -> str | None:
        """Return why the calls cannot be found, or None."""
        read = [*self._outer, *(value for value in self._node.inputs if value is not None)]
        for value in (*read, *self._body.inputs):
            kind = value.type
            unusual = kind is not None and not isinstance(kind, ir.TensorType)
            if unusual or (value.dtype is not None and value.dtype not in NUMPY_TYPES):
                return f"it reads {value.name!r}, which is not a tensor of ordinary numbers"
        names = [value.name for value in (*self._body.inputs, *self._outer)]
        if len(set(names)) < len(names):
            return "it gives the name of a tensor around it to one of its own"
        return None if names else "it reads nothing that depends on the model's inputs"

    def watch(self, tensors: Mapping[str, Any]) -> None:
        """Add the calls of one run of the model.

        Args:
            tensors: The tensors of `reads`, by name.
        """
        if self.failure:
            return
        values = {**self._fixed, **{name: tensors[name] for name in self.reads}}
        around = {value.name or "": values[value.name or ""] for value in self._outer}
        try:
            for call in self._calls(values, around):
                self._add(call)
        except (DataError, ModelError) as error:
            self.failure = f"onnxruntime cannot run it on its own: {error}"

    def why_nothing(self) -> str:
        """Return why there are no calls."""
        unusable = "every sample feeds it infinite numbers or empty tensors"
        return self.failure or (unusable if self._unusable else "no calibration sample runs it")

    def notes(self) -> Iterator[Note]:
        """Yield what the user should know about the calls."""
        if self._stopped:
            message = "{body}: only the first {rounds} rounds of each sample were observed"
            yield Note.of(message, body=str(self.place), rounds=_MOST_ROUNDS)

    def _add(self, call: Call) -> None:
        # Calibration data must be finite, and an empty tensor has no range.
        if all(array.size and (array.dtype.kind != "f" or np.isfinite(array).all()) for array in call.values()):
            self.kept.add({name: np.asarray(array, order="C") for name, array in call.items()})
        else:
            self._unusable = True

    def _calls(self, values: Mapping[str, Any], around: Call) -> Iterator[Call]:
        inputs = [None if value is None else values[value.name or ""] for value in self._node.inputs]
        if self._node.op_type == "If":
            branch = "then_branch" if np.asarray(inputs[0]).reshape(-1)[0] else "else_branch"
            if branch == self.place.attribute:
                yield around
        elif self._node.op_type == "Loop":
            yield from self._loop(inputs, around)
        else:
            yield from self._scan(inputs, around)

    def _loop(self, inputs: Sequence[Any], around: Call) -> Iterator[Call]:
        limit = None if inputs[0] is None else int(inputs[0].reshape(-1)[0])
        goes_on = True if inputs[1] is None else bool(inputs[1].reshape(-1)[0])
        current = list(inputs[2:])
        number = 0
        counter, condition = self._body.inputs[:2]
        while goes_on and (limit is None or number < limit):
            if number >= _MOST_ROUNDS:
                self._stopped = True
                return
            loop_inputs = [_single(number, np.int64, counter), _single(goes_on, np.bool_, condition), *current]
            call = {**_named(self._body.inputs, loop_inputs), **around}
            yield call
            outputs = self._run(call)
            goes_on = bool(outputs[0].reshape(-1)[0])
            current = outputs[1 : 1 + len(current)]
            number += 1

    def _scan(self, inputs: Sequence[Any], around: Call) -> Iterator[Call]:
        count = state_count(self._node)
        current, scanned = list(inputs[:count]), inputs[count:]
        axes = _ints(self._node, "scan_input_axes", len(scanned))
        backwards = _ints(self._node, "scan_input_directions", len(scanned))
        rows = [np.moveaxis(array, axis, 0) for array, axis in zip(scanned, axes, strict=True)]
        rows = [array[::-1] if back else array for array, back in zip(rows, backwards, strict=True)]
        self._stopped |= len(rows[0]) > _MOST_ROUNDS
        for number in range(min(len(rows[0]), _MOST_ROUNDS)):
            call = {**_named(self._body.inputs, [*current, *(array[number] for array in rows)]), **around}
            yield call
            current = self._run(call)[:count]

    def _run(self, call: Call) -> list[Any]:
        if self._session is None:
            single = body_model(self._model, self.place, [call], any_size=True)
            self._session = open_session(single, SessionOptions.float_segment(self._providers))
        fed = {entry.name: call[entry.name] for entry in self._session.get_inputs()}
        results = run_session(self._session, fed)
        return [results[value.name or ""] for value in self._body.outputs]


def _is_constant(value: ir.Value) -> bool:
    return value.is_initializer() and not value.is_graph_input()


def _named(inputs: Sequence[ir.Value], arrays: Sequence[Any]) -> dict[str, Any]:
    return {value.name or "": np.asarray(array) for value, array in zip(inputs, arrays, strict=True)}


def _single(number: Any, dtype: type, declared: ir.Value) -> Any:
    """Return a number as the array that a body declares: of rank 0 or 1."""
    return np.full((1,) if declared.shape is not None and len(declared.shape) == 1 else (), number, dtype)


def _ints(node: ir.Node, name: str, count: int) -> Sequence[int]:
    attribute = node.attributes.get(name)
    return [0] * count if attribute is None else attribute.as_ints()
