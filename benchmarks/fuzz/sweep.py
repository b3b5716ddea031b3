"""Quantize mutated models in a worker process that may crash or hang."""

import multiprocessing
from collections.abc import Iterator
from multiprocessing.connection import Connection

from benchmarks.fuzz.bases import base_models
from benchmarks.fuzz.mutations import mutate
from benchmarks.fuzz.outcome import RECIPES, Outcome, outcome_of

_SECONDS = 20.0
"""Time for one model, far above the usual fraction of a second."""


def model_of(seed: int) -> bytes:
    """Return the mutated model of a seed."""
    bases = list(base_models().values())
    return mutate(bases[seed % len(bases)], seed)


def outcomes(seeds: range) -> Iterator[tuple[int, Outcome]]:
    """Yield each seed with what happened to its model."""
    pending = iter(seeds)
    seed = next(pending, None)
    while seed is not None:
        ours, theirs = multiprocessing.get_context("spawn").Pipe()
        worker = multiprocessing.get_context("spawn").Process(target=_work, args=(theirs,), daemon=True)
        worker.start()
        theirs.close()
        while seed is not None:
            ours.send(seed)
            try:
                outcome = ours.recv() if ours.poll(_SECONDS) else Outcome("hang", f"more than {_SECONDS:.0f} s")
            except (EOFError, ConnectionResetError):
                outcome = Outcome("crash", f"exit status {worker.exitcode}")
            yield seed, outcome
            seed = next(pending, None)
            if outcome.kind in ("hang", "crash"):
                worker.kill()
                worker.join()
                break
        else:
            worker.kill()


def _work(connection: Connection) -> None:
    while True:
        seed = connection.recv()
        connection.send(outcome_of(model_of(seed), RECIPES[seed % len(RECIPES)]))
