"""Scores with the target's own arithmetic: evaluators run models on its backend, and outputs are stored by content."""

import platform
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Self

import onnx
import onnx_ir as ir
from numpy.typing import NDArray
from onnx_ir.passes.common import LiftConstantsToInitializersPass

from quantry.emit import may_use_exact_integers
from quantry.errors import RecipeError
from quantry.evaluate.arithmetic import (
    EXACT,
    Arithmetic,
    EvaluatedModel,
    computing_with,
    exact_session,
    look_up_session,
)
from quantry.graph.load import read_model
from quantry.graph.passes.infer_shapes import infer_shapes
from quantry.graph.quantized_model import QuantizedModel
from quantry.memo import Blob, Digest, Memo, Store, fingerprint, fingerprint_file, stage
from quantry.recipe import DataType
from quantry.runtime.sessions import deployment_session
from quantry.targets.backends import Backend, Runner
from quantry.targets.backends.ort_cpu import require
from quantry.targets.registry import backend_of, find_target
from quantry.targets.target import Target

_ARM = ("aarch64", "arm64", "ARM64")


def require_backend(target: Target | str) -> Backend:
    """Return the backend of a target.

    Args:
        target: The target or its name.

    Raises:
        RecipeError: Only the rules of the target are known.
    """
    resolved = find_target(target)
    backend = backend_of(resolved)
    if backend is None:
        raise RecipeError(f"the target must have a backend that runs models, got {resolved.name}, which has rules only")
    return backend


@contextmanager
def on_target(target: Target | str, store: Store | None = None) -> Iterator[Backend]:
    """Let evaluators and results that are asked inside of the block run every model on a target's backend.

    A search uses it to rank its leaders: trials are screened in simulation, and only the best few pay for the target.

    Args:
        target: The target or its name.
        store: Where outputs are kept; the same model, sample and version of the backend never run twice.

    Raises:
        RecipeError: Only the rules of the target are known.
        MissingExtraError: The backend is not installed.

    Example:
        >>> with on_target("qnn-htp"):  # doctest: +SKIP
        ...     score = evaluator("model.int8.onnx")
    """
    backend = require_backend(target)
    require(backend)
    with computing_with(DeviceArithmetic(backend, Memo(store))):
        yield backend


def computed_for(target: Target | str | None) -> AbstractContextManager[None]:
    """Let evaluators and results that are asked inside of the block compute models as a search for a target does.

    For onnxruntime's CPU provider that is its optimized session, as users open it, where it computes on integers. For
    all other targets it is `simulated_for`.

    Args:
        target: The target or its name; None or empty simulates exact rounding.
    """
    return computing_with(arithmetic_of(target))


def simulated_for(target: Target | str | None) -> AbstractContextManager[None]:
    """Let evaluators and results that are asked inside of the block simulate models with the rounding of a target.

    It is as fast as any simulation, needs no backend, and is close to the target where its rounding is known: HTP.

    Args:
        target: The target or its name; None or empty simulates exact rounding.
    """
    return computing_with(_simulation_of(target))


def arithmetic_of(target: Target | str | None) -> Arithmetic:
    """Return the arithmetic that the trials of a search for a target are scored with.

    Args:
        target: The target or its name; None or empty is exact rounding.
    """
    return DeployedArithmetic() if is_computed_here(target) else _simulation_of(target)


def _simulation_of(target: Target | str | None) -> Arithmetic:
    backend = backend_of(target) if target else None
    if backend is None or type(backend).write_arithmetic is Backend.write_arithmetic:
        return EXACT
    return SimulatedArithmetic(backend)


def is_computed_here(target: Target | str | None) -> bool:
    """Return whether a search scores every trial with the target's own arithmetic, which this machine has."""
    backend = backend_of(target) if target else None
    return backend is not None and backend.evaluates


@dataclass(frozen=True)
class DeployedArithmetic(Arithmetic):
    """onnxruntime's optimized session, as users open it, for models that it computes on integers; else exact."""

    def open(self, model: EvaluatedModel, threads: int | None = None) -> Any:
        """Open the session."""
        if not computes_on_integers(model):
            return exact_session(model, threads)
        return deployment_session(Path(model) if isinstance(model, str) else model, threads=threads, interleaved=True)

    def __fingerprint__(self) -> Digest:
        return fingerprint("deployed on onnxruntime's CPU provider")


@dataclass(frozen=True)
class SimulatedArithmetic(Arithmetic):
    """The simulation with the rounding of a backend.

    Attributes:
        backend: The backend; it need not be installed.
    """

    backend: Backend

    def open(self, model: EvaluatedModel, threads: int | None = None) -> Any:
        """Open the simulation."""
        graph = model.model if isinstance(model, QuantizedModel) else model
        loaded = graph if isinstance(graph, ir.Model) else read_model(Path(graph))
        return look_up_session(simulated_model(loaded, self.backend), threads)

    def __fingerprint__(self) -> Digest:
        return fingerprint(("simulated", self.backend.name, self.backend.arithmetic_version))


@dataclass(frozen=True)
class DeviceArithmetic(Arithmetic):
    """A target's backend; outputs are stored by content.

    Attributes:
        backend: The backend.
        memo: Where outputs are kept.
    """

    backend: Backend
    memo: Memo
    one_by_one: ClassVar[bool] = True

    def open(self, model: EvaluatedModel, threads: int | None = None) -> "RunnerSession":
        """Open the model on the backend, with its own choice of threads, when the first sample is run."""
        del threads
        graph = model.model if isinstance(model, QuantizedModel) else model
        values = graph.graph.outputs if isinstance(graph, ir.Model) else _outputs(Path(graph))
        names = [str(value.name) for value in values]
        return RunnerSession(_StoredRunner(_OpenModel(self.backend, model), self.memo), names)

    def __fingerprint__(self) -> Digest:
        return fingerprint(("device", self.backend.name, self.backend.version()))


def computes_on_integers(model: EvaluatedModel) -> bool:
    """Return whether onnxruntime's CPU provider fuses Q/DQ pairs of a model into integer kernels.

    It does so for activations of 8 bits: for all operators with uint8, for some with int8 on x86, and for hardly any
    with an int8 bias, which power-of-two models have. Others are computed in float between their pairs, with the
    results of the simulation and more time. A model without pairs of activations counts as one that is fused.

    Args:
        model: The model.
    """
    proto = _structure(model)
    if proto is None:
        return True
    constants = {tensor.name: tensor.data_type for tensor in proto.graph.initializer}
    types = {
        constants.get(node.input[2])
        for node in proto.graph.node
        if node.op_type == "QuantizeLinear" and len(node.input) > 2 and node.input[0] not in constants
    }
    if types and types.isdisjoint((onnx.TensorProto.UINT8, onnx.TensorProto.INT8)):
        return False
    return not may_use_exact_integers(proto)


def integer_activations() -> tuple[DataType, ...]:
    """Return the types of activations for which onnxruntime's CPU provider fuses every product on this machine."""
    return (DataType.UINT8, DataType.INT8) if platform.machine() in _ARM else (DataType.UINT8,)


def _structure(model: EvaluatedModel) -> onnx.ModelProto | None:
    graph = model.model if isinstance(model, QuantizedModel) else model
    if isinstance(graph, ir.Model):
        return ir.to_proto(graph)
    try:
        return onnx.load(graph, load_external_data=False)
    except Exception:  # onnx's exceptions share no base class; the session then says what is wrong with the file
        return None


def simulated_model(model: ir.Model, backend: Backend | None) -> ir.Model:
    """Return a copy of a quantized model that rounds as a backend does.

    Args:
        model: The model.
        backend: The backend; None returns the model itself.
    """
    if backend is None:
        return model
    copy = model.clone()
    LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(copy)
    infer_shapes(copy)
    backend.write_arithmetic(copy)
    return copy


@dataclass(frozen=True, eq=False)
class TargetOutputs:
    """What a target computed for one sample.

    Attributes:
        arrays: The outputs by name.
    """

    arrays: Mapping[str, NDArray[Any]]

    def to_blob(self) -> Blob:
        """Return the stored form; names of outputs may hold any characters, so arrays are numbered."""
        numbered = {str(index): array for index, array in enumerate(self.arrays.values())}
        return Blob(meta={"names": [*self.arrays]}, arrays=numbered)

    @classmethod
    def from_blob(cls, blob: Blob) -> Self:
        """Return what ``to_blob`` stored."""
        names: Any = blob.meta["names"]
        return cls({name: blob.arrays[str(index)] for index, name in enumerate(names)})


class _OpenModel:
    """A model on a backend; opened when a sample has to be run."""

    def __init__(self, backend: Backend, model: EvaluatedModel) -> None:
        self._backend = backend
        if isinstance(model, ir.Model):
            model = QuantizedModel(model)
        self._model = Path(model) if isinstance(model, str) else model

    @cached_property
    def runner(self) -> Runner:
        """The open model."""
        return self._backend.open(self._model)

    def __fingerprint__(self) -> Digest:
        """Return the digest of the model and of the backend with its version."""
        return self._digest

    @cached_property
    def _digest(self) -> Digest:
        model = self._model
        content = fingerprint_file(model) if isinstance(model, Path) else fingerprint(model.to_bytes())
        return fingerprint((str(content), self._backend.name, self._backend.version()))


@stage(name="target_outputs", version=1)
def target_outputs(model: _OpenModel, sample: Mapping[str, NDArray[Any]]) -> TargetOutputs:
    """Run one sample on a target.

    Args:
        model: The model on its backend.
        sample: Input names to arrays.
    """
    return TargetOutputs(model.runner.run(sample))


@dataclass(frozen=True)
class _Output:
    name: str
    # A runner knows no shapes before it runs, as onnxruntime does not for models that declare none.
    shape: tuple[int, ...] = ()


class RunnerSession:
    """A runner with the methods of an onnxruntime session that evaluators use.

    Args:
        runner: Runs one sample.
        names: Names of the outputs.
    """

    def __init__(self, runner: Runner, names: list[str]) -> None:
        self._runner = runner
        self._names = names

    def get_outputs(self) -> list[_Output]:
        """Return the outputs, which have a name."""
        return [_Output(name) for name in self._names]

    def run(self, names: list[str] | None, feeds: Mapping[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """Return the wanted outputs for one sample."""
        outputs = self._runner.run(feeds)
        return [outputs[name] for name in (names or self._names)]


class _StoredRunner(Runner):
    """A model whose outputs are kept in a store."""

    def __init__(self, model: _OpenModel, memo: Memo) -> None:
        self._model = model
        self._memo = memo

    def run(self, feeds: Mapping[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:
        """Return the stored outputs, or run the model."""
        return dict(self._memo.run(target_outputs, self._model, dict(feeds)).value.arrays)


def _outputs(path: Path) -> Any:
    return onnx.load(path, load_external_data=False).graph.output
