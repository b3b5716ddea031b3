"""Decoding undoes the grid and keeps one box per object."""

import numpy as np
import pytest
import torch

from quantry import demo
from quantry.errors import DataError
from quantry.evaluate.tasks import overlaps, suppress

ROWS = 32 * 32 + 16 * 16 + 8 * 8


def test_a_row_decodes_to_its_box_score_and_label() -> None:
    output = np.zeros((2, ROWS, 13), np.float32)
    row = 32 * 32 + 5 * 16 + 3  # stride 8, cell (3, 5)
    output[1, row] = [0.5, 0.25, np.log(2.0), np.log(3.0), 0.8, 0, 0, 0.5, 0, 0, 0, 0, 0]
    empty, found = demo.decode(output)
    assert len(empty.scores) == 0
    np.testing.assert_allclose(found.boxes, [[28 - 8, 42 - 12, 28 + 8, 42 + 12]], rtol=1e-6)
    np.testing.assert_allclose(found.scores, [0.4], rtol=1e-6)
    assert found.labels.tolist() == [2]


def test_broken_rows_are_no_detections() -> None:
    output = np.ones((1, ROWS, 13), np.float32)
    output[0, :, 0] = np.nan
    output[0, 0, :4] = [0, 0, 500, 500]
    found = demo.decode(output)[0]
    assert len(found.scores) == 1
    assert np.isfinite(found.boxes).all()
    assert found.boxes.max() <= demo.IMAGE_SIZE


def test_an_output_of_another_shape_raises() -> None:
    with pytest.raises(DataError, match=r"got \[1, 10, 13\]"):
        demo.decode(np.zeros((1, 10, 13)))


@pytest.mark.parametrize("seed", range(5))
def test_suppression_is_greedy_best_first_and_by_class(seed: int) -> None:
    rng = np.random.default_rng(seed)
    low = rng.random((60, 2)) * 40
    boxes = np.concatenate([low, low + 10 + rng.random((60, 2)) * 20], axis=1)
    labels = rng.integers(0, 2, 60)
    kept: list[int] = []
    for index in range(60):
        same = [other for other in kept if labels[other] == labels[index]]
        if all(overlaps(boxes[[index]], boxes[[other]])[0, 0] <= 0.5 for other in same):
            kept.append(index)
    assert suppress(boxes, labels, 0.5).tolist() == kept


def test_overlap_of_known_boxes() -> None:
    a = np.array([[0.0, 0, 2, 2], [1, 1, 1, 1]])
    b = np.array([[1.0, 0, 3, 2], [1, 1, 1, 1], [5, 5, 6, 6]])
    np.testing.assert_allclose(overlaps(a, b), [[1 / 3, 0, 0], [0, 0, 0]])


def test_decoding_keeps_what_torch_decodes() -> None:
    rng = np.random.default_rng(0)
    raw = rng.normal(0, 0.3, (ROWS, 4)).astype(np.float32)
    output = np.concatenate([raw, np.zeros((ROWS, 9), np.float32)], axis=1)[None]
    chosen = [40, 700, 1100, 1300]
    output[0, chosen, 4:6] = 1.0
    found = demo.decode(output)[0]
    grid = torch.cat(
        [torch.cartesian_prod(torch.arange(side), torch.arange(side)).flip(1) for side in (32, 16, 8)]
    ).double()
    stride = torch.cat([torch.full((side * side, 1), 128.0 // side) for side in (32, 16, 8)])
    centre = (torch.from_numpy(raw[:, :2]) + grid) * stride
    half = torch.exp(torch.from_numpy(raw[:, 2:]).double()) * stride / 2
    expected = torch.cat([centre - half, centre + half], 1)[chosen].clamp(0, 128).numpy()
    np.testing.assert_allclose(np.sort(found.boxes, axis=0), np.sort(expected, axis=0), rtol=1e-9)
