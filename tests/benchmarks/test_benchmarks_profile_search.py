"""What counts as inference in the profile of a search."""

import pytest
from benchmarks.profile_search import kind, report

SITE = "/env/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        (f"{SITE}/onnxruntime/capi/onnxruntime_inference_collection.py", "run", "inference"),
        (f"{SITE}/onnxruntime/capi/onnxruntime_inference_collection.py", "run_with_iobinding", "inference"),
        (
            f"{SITE}/onnxruntime/capi/onnxruntime_inference_collection.py",
            "_create_inference_session",
            "opening sessions",
        ),
        (f"{SITE}/torch/nn/functional.py", "conv2d", "training"),
        ("/src/quantry/torchfront/capture.py", "run", "all else"),
        ("/src/quantry/observe/counting.py", "count", "counting statistics of the float passes"),
        (f"{SITE}/numpy/lib/_function_base_impl.py", "diff", "all else"),
    ],
)
def test_kind_of_work(path: str, name: str, expected: str) -> None:
    assert kind(path, name) == expected


def test_report_says_what_was_searched_and_the_share_that_counts() -> None:
    facts = {
        "kinds": {"inference": 8.0, "training": 0.5, "all else": 1.5},
        "homes": {"onnxruntime": 8.0},
        "owners": [("scale/stage.py: scale", 1.0)],
        "trials": 200,
        "evaluated": 40,
        "observations": 1,
        "calibrate": 32,
        "evaluate": 96,
    }
    text = report(facts, 9.0)
    assert "200 configurations" in text
    assert "give 40 different models" in text
    assert "observed once" in text
    assert "**Inference or training: 85.0%**" in text
