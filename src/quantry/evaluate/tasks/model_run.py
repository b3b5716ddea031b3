"""Runs a model over samples of a book."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from quantry.evaluate.sessions import run_session, simulation_session
from quantry.evaluate.tasks.sample_book import SampleBook

if TYPE_CHECKING:
    import onnxruntime

Outputs = dict[str, NDArray[Any]]


def open_model(model: str | Path, threads: int | None = None) -> "onnxruntime.InferenceSession":
    """Open a session that computes what the graph says, so that a score does not depend on the machine.

    Args:
        model: Path of an ONNX file.
        threads: Threads inside one operator; None leaves the choice to the process.
    """
    return simulation_session(Path(model), threads=threads, in_turn=True)


def run_model(
    model: str | Path, book: SampleBook, indices: Iterable[int], threads: int | None = None
) -> Iterator[tuple[int, Outputs]]:
    """Yield what a model answers to each sample, with the sample's number.

    Args:
        model: Path of an ONNX file.
        book: The samples.
        indices: Which of them.
        threads: Threads inside one operator; None leaves the choice to the process.
    """
    session = open_model(model, threads)
    for index, feeds in book.read(indices):
        yield index, run_session(session, feeds)
