"""The detector that quantry ships, int8 with one power-of-two scale for each tensor: what is kept of its precision."""

import argparse
import os
from pathlib import Path
from typing import Any

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "yolox"
SCENES, KEPT = 40, 0.88
"""On 60 scenes calibration keeps 92 % of the float precision, 24 steps of training 93 %; fewer scenes are noisier."""


@pytest.fixture(autouse=True)
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)


@pytest.mark.skipif("QUANTRY_SLOW_TESTS" not in os.environ, reason="takes a minute or two; part of `make accuracy`")
def test_calibration_and_training_without_labels_keep_most_of_the_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import detection_tasks
    import PTQ_QAT_exp as steps

    from quantry import demo

    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = demo.calibration_inputs
    monkeypatch.setattr(demo, "calibration_inputs", lambda count: inputs(min(count, 16)))
    task, model = detection_tasks.EmbeddedTask(SCENES), detection_tasks.EmbeddedDetector()
    float_score, _ = task.score(model)
    quantized: Any = steps.quantize(model, task)
    calibrated, _ = task.score(model)
    assert calibrated >= KEPT * float_score
    steps.train(quantized, task, argparse.Namespace(device="cpu", batch=4, steps=6, rate=2e-4))
    trained, _ = task.score(model)
    assert trained >= KEPT * float_score
    done = steps.export(model, task, tmp_path)
    assert done.is_exact
