"""The search of document 000, with the same script for both libraries. Runs in the peer's environment too."""

import importlib
from collections.abc import Callable, Iterator
from typing import Any

from benchmarks.tasks.samples import SampleReader

_HOMES = {
    "quantry": ("quantry.onnx", "quantry.onnx.quantization.config", "quantry.onnx.auto_search"),
    "quark": ("quark.onnx", "quark.onnx.quantization.config", "quark.onnx.quantization.auto_search.auto_search_v1"),
}


class ImageSet:
    """Samples that are read from the start as often as they are asked for: the peer evaluates with ``for``."""

    def __init__(self, folder: str, count: int) -> None:
        reader = SampleReader(folder, count)
        self._samples = [reader.get_next() for _ in range(count)]
        self._next = 0

    def get_next(self) -> Any:
        """Return the next sample, or None after the last."""
        self._next += 1
        return self._samples[self._next - 1] if self._next <= len(self._samples) else None

    def __iter__(self) -> Iterator[Any]:
        return iter(self._samples)

    def __getitem__(self, index: int) -> Any:
        return self._samples[index]

    def __len__(self) -> int:
        return len(self._samples)


def search(
    model: str, samples: str, count: int, library: str, equalization: bool = False, **_: Any
) -> Callable[[], dict[str, Any]]:
    """Time ``AutoSearch.search_model`` over two methods, two activation types and two moving averages.

    Args:
        model: Path of the float model.
        samples: Folder of samples.
        count: How many of them, for calibration and for evaluation.
        library: "quantry" or "quark".
        equalization: Try cross-layer equalization off and on.
    """
    names, configs, home = map(importlib.import_module, _HOMES[library])
    base = configs.get_default_config("S8S8_AAWS")
    base.calibrate_method = names.CalibrationMethod.MinMax
    settings: Any = home.AutoSearchConfig()
    settings.search_space = {
        "calibrate_method": [names.CalibrationMethod.MinMax, names.CalibrationMethod.Percentile],
        "activation_type": [names.QuantType.QInt8, names.QuantType.QInt16],
        "weight_type": [names.QuantType.QInt8],
        "include_cle": [False, True] if equalization else [False],
        "include_fast_ft": [False],
        "extra_options": {
            "ActivationSymmetric": [False],
            "WeightSymmetric": [True],
            "CalibMovingAverage": [False, True],
            "CalibMovingAverageConstant": [0.01],
        },
    }
    # The peer has this attribute too, and heeds it in another kind of search only.
    settings.n_jobs = 2
    settings.search_metric = "L2"
    settings.search_metric_tolerance = 1e9
    settings.search_algo = "grid_search"
    settings.search_evaluator = None
    settings.search_cache_dir = settings.search_output_dir = "./"
    settings.search_stop_condition = {
        "find_n_candidates": -1,
        "find_best_candidate": -1,
        "iteration_limit": 1000,
        "time_limit": 3600,
    }
    images = ImageSet(samples, count)

    def job() -> dict[str, Any]:
        found = home.AutoSearch(
            model_input=model,
            config=configs.Config(global_quant_config=base),
            auto_search_config=settings,
            eval_dataloader=ImageSet(samples, count),
            calibration_data_reader=images,
        ).search_model()
        return {"candidates": len(found), "best": min(float(entry["difference"]) for entry in found)}

    return job
