"""quantry's side."""

from collections.abc import Callable, Mapping
from typing import Any

from benchmarks.tasks.samples import SampleReader

Facts = dict[str, Any]
Plain = Mapping[str, Any]


def quantize(
    model: str, samples: str, count: int, recipe: str | Plain, output: str = "quantized.onnx", **more: Any
) -> Callable[[], Facts]:
    """Time `quantry.quantize` with an empty store on disk, as a user's first call, and writing the model.

    Args:
        model: Path of the float model.
        samples: Folder of samples.
        count: How many of them.
        recipe: A preset, a recipe as plain data, or "auto".
        output: Path of the quantized model.
        **more: ``target`` and ``effort`` are passed on; all else describes the workload.
    """
    quantize_model = _loaded()

    def job() -> Facts:
        chosen = {name: more[name] for name in ("target", "effort") if name in more}
        result = quantize_model(model, SampleReader(samples, count), recipe, **chosen)
        files = result.save(output)
        return {"bytes": sum(file.stat().st_size for file in files), "stages": _stages(result)}

    return job


def quantize_again(
    model: str, samples: str, count: int, first: str | Plain, second: str | Plain, **_: Any
) -> Callable[[], Facts]:
    """Time a second call that changes only the method; the first call is not timed, its result is still there."""
    quantize_model = _loaded()
    before = quantize_model(model, SampleReader(samples, count), first)
    before.save("first.onnx")

    def job() -> Facts:
        result = quantize_model(model, SampleReader(samples, count), second)
        result.save("second.onnx")
        if result.trace.computed("observe"):
            raise RuntimeError("the second call ran the float model again")
        return {"stages": _stages(result), "first": _stages(before)}

    return job


def observe(model: str, samples: str, count: int, **_: Any) -> Callable[[], Facts]:
    """Time the float pass that collects the statistics for all methods: reading the samples, session and all."""
    import onnxruntime  # noqa: F401 - loaded before the clock starts

    from quantry.data.open_data import calibration_data
    from quantry.graph.load import model_source
    from quantry.observe import observe
    from quantry.prepare import prepare
    from quantry.recipe import ObserveOptions, PrepareOptions

    prepared = prepare(model_source(model), PrepareOptions())

    def job() -> Facts:
        data = calibration_data(SampleReader(samples, count), prepared.inputs)
        statistics = observe(prepared, data, ObserveOptions())
        return {"tensors": len(statistics.tensors), "samples": statistics.samples}

    return job


def _loaded() -> Callable[..., Any]:
    import onnxruntime  # noqa: F401 - loaded before the clock starts

    import quantry

    return quantry.quantize


def _stages(result: Any) -> dict[str, str]:
    return {entry.stage: f"{entry.outcome} {entry.seconds:.3f} s" for entry in result.trace.entries}
