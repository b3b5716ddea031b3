"""A search in its own process, for tests that kill it: python killed_search.py NETWORK OUTPUT JOBS."""

import sys
import time
from pathlib import Path

from small_network import Distance, random_samples, small_space

from quantry.autosearch import SearchOptions, run_search


class Witness(Distance):
    """Writes the name of every model it has evaluated to a file."""

    size = None  # type: ignore[assignment]

    def __init__(self, model: Path, book: Path) -> None:
        super().__init__(model, 4)
        self.book = book

    def __call__(self, model_path: Path) -> float:
        time.sleep(0.05)
        score = float(sum(self.per_sample(model_path, range(4))))
        with self.book.open("a") as file:
            file.write(f"{Path(model_path).name} {score!r}\n")
        return score


def killed_options(output: Path, jobs: int) -> SearchOptions:
    return SearchOptions(sampler="tpe", output_dir=output, n_jobs=jobs, n_trials=9)


if __name__ == "__main__":
    network, output, jobs = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    evaluator = Witness(network, output.with_suffix(".book"))
    run_search(network, random_samples(2), evaluator, small_space(), killed_options(output, jobs))
