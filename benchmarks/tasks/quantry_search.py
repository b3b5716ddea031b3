"""quantry's own search, and the work that no search can do without."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.tasks.samples import SampleReader

Facts = dict[str, Any]


def _samples(folder: str, count: int) -> list[Any]:
    reader = SampleReader(folder, count)
    return [reader.get_next() for _ in range(count)]


def _space(name: str) -> Any:
    """Return a space: "methods" has 32 configurations, "wide" has 240 with 4 equalizations."""
    from quantry.autosearch import Space, calibration_space
    from quantry.recipe import CrossLayer, Entropy, MinMax, MinMSE, Percentile, PerChannel, TensorSpec, find_preset

    base = find_preset("S8S8_AAWS").recipe
    if name == "methods":
        return calibration_space(base)
    percentiles = [Percentile(value) for value in (99.0, 99.9, 99.99, 99.999, 99.9999, 100.0)]
    averages = [MinMax(), MinMax(0.01), MinMax(0.001)]
    return Space.of(
        base,
        {
            "equalize.cross_layer": [None, CrossLayer(), CrossLayer(steps=2), CrossLayer(use_threshold=False)],
            "scale.activation": [*averages, *percentiles, MinMSE()],
            "scale.weight": [MinMax(), MinMSE(), Entropy()],
            "plan.weight": [TensorSpec(), TensorSpec(granularity=PerChannel())],
        },
    )


def search(
    model: str,
    samples: str,
    count: int,
    space: str,
    trials: int | None = None,
    *,
    calibrate: int | None = None,
    **options: Any,
) -> Callable[[], Facts]:
    """Time a grid search that scores models by their outputs on samples that are not used for calibration.

    Args:
        model: Path of the float model.
        samples: Folder of samples.
        count: How many of them.
        space: Name of the space.
        trials: At most this many.
        calibrate: The first samples, this many, calibrate and the others evaluate; None lets the search decide, which
            takes half for each.
        options: Fields of ``SearchOptions``.
    """
    import onnxruntime  # noqa: F401 - loaded before the clock starts
    import optuna  # noqa: F401

    import quantry

    data = _samples(samples, count)
    chosen = _space(space)
    if calibrate is not None:
        data, options["evaluation_data"] = data[:calibrate], data[calibrate:]

    def job() -> Facts:
        found = quantry.search(model, data, "l2", chosen, sampler="grid", n_trials=trials, **options)
        assert found.best is not None
        observed = sum("observe" in trial.computed for trial in found.trials)
        evaluated = sum(trial.same_as is None for trial in found.trials)
        return {
            "trials": len(found.trials),
            "evaluated": evaluated,
            "note": f"{evaluated} of {len(found.trials)} configurations have distinct results; {observed} observations",
            "best": found.best.score,
            "interval": found.best.interval,
            "configuration": {name: str(value) for name, value in found.best.assignment.items()},
            "evaluation_share": found.evaluation_share,
            "observations": observed,
        }

    return job


# Held-out samples that a search is evaluated on; the interval of top-1 is 6 points wide on either side.
_HELD_OUT = 200


def default_space(model: str, samples: str, count: int, suite: str, target: str, seconds: float) -> Callable[[], Facts]:
    """Time a search of the default space with the suite's own metric on labelled samples.

    Args:
        model: Path of the float model.
        samples: Folder of calibration samples.
        count: How many of them.
        suite: Whose metric is used.
        target: Where the model shall run.
        seconds: The budget.
    """
    import onnxruntime  # noqa: F401 - loaded before the clock starts
    import optuna  # noqa: F401

    import quantry
    from benchmarks.accuracy.suites import find_suite

    data = _samples(samples, count)
    found_suite = find_suite(suite)

    def score(path: Path) -> float:
        return found_suite.score(Path(path), _HELD_OUT).value

    def job() -> Facts:
        found = quantry.search(model, data, score, target=target, budget=seconds)
        assert found.best is not None
        assert found.best.score is not None
        return {
            "best": found.best.score,
            "float": found.reference.value,
            "trials": len(found.trials),
            "note": f"{found_suite.metric} {found.best.score:.4f} (float {found.reference.value:.4f}) after "
            f"{len(found.trials)} trials, found by trial {found.best.number}",
        }

    return job


def floor(model: str, samples: str, count: int, trials: int, **_: Any) -> Callable[[], Facts]:
    """Time four observations and as many evaluations as there are trials, with nothing around them."""
    import onnxruntime  # noqa: F401 - loaded before the clock starts

    import quantry
    from quantry.autosearch import split_data
    from quantry.data.open_data import calibration_data
    from quantry.data.sample_cache import SampleCache
    from quantry.evaluate.tasks import OutputDistance
    from quantry.graph.load import model_source
    from quantry.observe import observe
    from quantry.prepare import prepare
    from quantry.recipe import ObserveOptions, PrepareOptions

    prepared = prepare(model_source(model), PrepareOptions())
    calibration, evaluation = split_data(calibration_data(_samples(samples, count), prepared.inputs))
    quantry.quantize(model, calibration, store=None).save("quantized.onnx")

    def job() -> Facts:
        for _turn in range(4):
            observe(prepared, calibration, ObserveOptions())
        evaluate = OutputDistance(model, SampleCache(evaluation), "l2")
        scores = [evaluate("quantized.onnx") for _turn in range(trials)]
        return {"trials": len(scores)}

    return job
