"""Precision of the embedded detector in int8 with one power-of-two scale per tensor."""

import argparse
import os
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
import torch

from quantry.runtime.sessions import run_session, simulation_session

EXAMPLE = Path(__file__).parents[2] / "examples" / "yolox"
SCENES, KEPT, LESS = 40, 0.935, 0.6
"""On 400 scenes calibration keeps 96 % of the float precision; fewer scenes are noisier."""


@pytest.fixture(autouse=True)
def _on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(EXAMPLE)


def differing(path: Path, model: torch.nn.Module) -> int:
    """Return on how many evaluation scenes the exported model detects anything else than the frozen torch model."""
    from quantry import demo

    session = simulation_session(ir.load(path), threads=1)
    count = 0
    for scene in demo.evaluation_scenes(SCENES):
        image = demo.image_tensor(scene)
        with torch.no_grad():
            (found,) = demo.decode(model(torch.from_numpy(image)).numpy())
        (rows,) = run_session(session, {demo.INPUT_NAME: image}).values()
        (wanted,) = demo.decode(rows)
        pairs = ((found.boxes, wanted.boxes), (found.scores, wanted.scores), (found.labels, wanted.labels))
        count += not all(np.array_equal(one, other) for one, other in pairs)
    return count


@pytest.mark.timeout(1200)  # on a busy machine it may take several times as long
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
    task = detection_tasks.EmbeddedTask(SCENES, detection_tasks.DrawnScenes(16))
    model = detection_tasks.EmbeddedDetector()
    float_score, _ = task.score(model)
    quantized: Any = steps.quantize(model, task)
    calibrated, _ = task.score(model)
    assert calibrated >= KEPT * float_score
    steps.train(quantized, task, argparse.Namespace(device="cpu", batch=4, steps=6, rate=2e-4))
    trained, _ = task.score(model)
    assert trained >= KEPT * float_score
    done = steps.export(model, task, tmp_path)
    assert done.is_exact
    assert differing(Path(done.path), model) == 0


def test_chosen_scales_bring_boxes_and_scores_closer_to_the_float_model() -> None:
    import detection_tasks
    import PTQ_QAT_exp as steps

    from quantry import demo
    from quantry.torch import ModelQuantizer, choose_scales, float_teacher

    torch.set_num_threads(1)
    detector = detection_tasks.EmbeddedDetector
    pictures = [torch.from_numpy(entry[demo.INPUT_NAME]) for entry in demo.calibration_inputs(4)]
    unseen = torch.from_numpy(np.concatenate([demo.image_tensor(scene) for scene in demo.evaluation_scenes(4)]))
    quantizer = ModelQuantizer(steps.configuration((), detector.float_part, detector.observer))
    quantized = quantizer.quantize_model(demo.MODEL_PATH, pictures)
    with torch.no_grad():
        wanted = float_teacher(quantized)(unseen)

    def cost() -> float:
        with torch.no_grad():
            return float(((quantized(unseen) - wanted).square() * detector.importance(wanted)).sum())

    before = cost()
    assert choose_scales(quantized, pictures, detector.importance) > 0
    assert cost() < LESS * before


def test_loss_of_labels_rises_where_boxes_or_classes_are_wrong() -> None:
    import drawn_scenes
    import label_loss

    from quantry import demo

    images, boxes, labels = drawn_scenes.labelled(demo.training_scenes(2))
    assert images.shape == (2, 3, demo.IMAGE_SIZE, demo.IMAGE_SIZE)
    grid, stride = label_loss.anchors(torch.device("cpu"))
    rows = torch.full((2, len(grid), 5 + len(demo.CLASS_NAMES)), 1e-4)
    for picture, (found, kinds) in enumerate(zip(boxes, labels, strict=True)):
        for box, kind in zip(found, kinds, strict=True):
            if kind >= 0:
                centre, size = (box[:2] + box[2:]) / 2, box[2:] - box[:2]
                cell = ((grid + 0.5) * stride - centre).square().sum(1).argmin()
                exact = torch.cat([centre / stride[cell] - grid[cell], torch.log(size / stride[cell])])
                rows[picture, cell, :4], rows[picture, cell, 4] = exact, 0.99
                rows[picture, cell, 5 + kind] = 0.99
    right = label_loss.label_loss(rows, [boxes, labels])
    moved, other = rows.clone(), rows.clone()
    moved[..., 2] += 0.3
    other[..., 5:] = rows[..., 5:].roll(1, -1)
    assert right < label_loss.label_loss(moved, [boxes, labels])
    assert right < label_loss.label_loss(other, [boxes, labels])


def test_training_on_labels_takes_batches_with_boxes() -> None:
    import drawn_scenes
    import label_loss

    from quantry import demo
    from quantry.recipe import Recipe
    from quantry.torch import quantize_graph

    torch.set_num_threads(1)
    sample = [torch.from_numpy(entry[demo.INPUT_NAME]) for entry in demo.calibration_inputs(1)]
    module = quantize_graph(demo.MODEL_PATH, sample, Recipe())
    task = label_loss.LabelledTask(2, drawn_scenes.DrawnScenes(2))
    batch = next(iter(task.training(1)))
    loss = task.loss(module)(module, batch)
    loss.backward()
    assert torch.isfinite(loss)
    assert any(part.grad is not None and bool(part.grad.any()) for part in module.parameters())
