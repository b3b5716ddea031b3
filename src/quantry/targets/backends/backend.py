"""What a backend is: it runs models as the target does, and says what ran where."""

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import onnx_ir as ir
from numpy.typing import NDArray

from quantry.runtime.sessions import SessionModel

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class PlacedNode:
    """What became of one node of the model.

    Attributes:
        node: Name of the node.
        operator: Its operator type.
        kernel: The kernel that computes it, such as ``QLinearConv``; empty if it was removed.
        unit: Name of the node that the kernel is named after: another one if this node was fused into it.
        precision: Type that the kernel reads, such as ``uint8``; empty if unknown.
        device: Where it runs: ``HTP``, ``CPU``; empty if it was removed.
        milliseconds: Time of the kernel in one run, on the node that it is named after; None if unknown.
        why: Why it fell back or stayed float; empty if it did not.
    """

    node: str
    operator: str
    kernel: str
    unit: str
    precision: str
    device: str
    milliseconds: float | None = None
    why: str = ""


class Runner(ABC):
    """A model that is ready to run on a target."""

    @abstractmethod
    def run(self, feeds: Arrays) -> dict[str, NDArray[Any]]:
        """Run the model once.

        Args:
            feeds: Input names to arrays.

        Returns:
            Output names to arrays, in the model's order.

        Raises:
            DataError: The backend does not accept the arrays, or fails on them.
        """

    def milliseconds(self, feeds: Arrays) -> float:
        """Run the model once and return how long it took."""
        started = time.perf_counter_ns()
        self.run(feeds)
        return max(time.perf_counter_ns() - started, 1) / 1e6

    def close(self) -> None:
        """Release what the runner holds; it cannot run afterwards."""
        return


class Backend(ABC):
    """Runs models for a target.

    Attributes:
        name: Its name in `quantry.targets.Target.backend`.
        product: The library, for tables.
        licence: The licence of the library.
        install: How to install it.
        device: The device that nodes should run on.
        emulated: Whether it only emulates the device, so that its times say nothing.
        arithmetic_version: Raised by hand when `write_arithmetic` computes something else; part of the keys of scores.
        evaluates: Whether a search scores every trial on it: it is always there, and as fast as a simulation.
    """

    name: str
    product: str
    licence: str
    install: str
    device: str
    emulated: bool = False
    arithmetic_version: int = 1
    evaluates: bool = False

    @abstractmethod
    def version(self) -> str | None:
        """Return the version that is installed; None if there is none."""

    @abstractmethod
    def open(self, model: SessionModel, threads: int | None = None) -> Runner:
        """Open a model.

        Args:
            model: The model.
            threads: Threads of one run; None leaves the choice to the library.

        Raises:
            ModelError: The backend refuses the model; the message is its own.
            MissingExtraError: The library is not installed.
        """

    def write_arithmetic(self, model: ir.Model) -> None:
        """Let a simulation of a quantized model compute as this backend does, as far as its arithmetic is known.

        By default nothing is changed: the simulation rounds the float result of every operator.

        Args:
            model: A model with Q/DQ pairs; it is changed in place.
        """
        del model

    @abstractmethod
    def placement(self, model: SessionModel, feeds: Arrays) -> tuple[PlacedNode, ...]:
        """Return what became of every node of a model.

        Args:
            model: The model.
            feeds: One sample, by input name.

        Returns:
            One entry for each node that is not part of a Q/DQ pair, and for each quantizer with a kernel of its own.
        """
