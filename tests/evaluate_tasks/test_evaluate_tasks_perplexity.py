"""Perplexity against torch's cross entropy."""

from pathlib import Path

import numpy as np
import onnx
import onnx.parser
import pytest

from quantry.data.calibration_data import CalibrationData
from quantry.data.open_data import calibration_data
from quantry.data.sample_cache import SampleCache
from quantry.errors import DataError
from quantry.evaluate.tasks import Perplexity
from quantry.graph.float_model import InputSignature

INPUTS = (
    InputSignature("input_ids", np.dtype(np.int64), ("batch", "length")),
    InputSignature("attention_mask", np.dtype(np.int64), ("batch", "length")),
)
TABLE = np.random.default_rng(0).normal(size=(11, 11)).astype(np.float32) * 3


def language_model(folder: Path) -> Path:
    """A bigram model: the logits of the next token are a row of a table."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 17]>
        g (int64[batch,length] input_ids, int64[batch,length] attention_mask) => (float[batch,length,11] logits) {
          logits = Gather(table, input_ids)
        }"""
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(TABLE, "table"))
    onnx.save(model, folder / "lm.onnx")
    return folder / "lm.onnx"


def samples(*lengths: int, padding: int = 0) -> CalibrationData:
    generator = np.random.default_rng(1)
    data = []
    for length in lengths:
        mask = np.ones((1, length), np.int64)
        mask[:, :padding] = 0
        data.append({"input_ids": generator.integers(0, 11, (1, length)), "attention_mask": mask})
    return calibration_data(data, INPUTS)


@pytest.mark.parametrize("padding", [0, 2])
def test_perplexity_is_that_of_torch(tmp_path: Path, padding: int) -> None:
    torch = pytest.importorskip("torch")
    data = samples(5, 9, 3, padding=padding)
    losses = [
        torch.nn.functional.cross_entropy(
            torch.tensor(TABLE[sample["input_ids"][0, padding:-1]]),
            torch.tensor(sample["input_ids"][0, padding + 1 :]),
            reduction="none",
        )
        for sample in data
    ]
    expected = float(torch.exp(torch.cat(losses).mean()))
    assert Perplexity(SampleCache(data))(language_model(tmp_path)) == pytest.approx(expected, rel=1e-5)


def test_samples_without_a_next_token_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="at least two tokens"):
        Perplexity(SampleCache(samples(1)))(language_model(tmp_path))


def test_unknown_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="must be an input of the model"):
        Perplexity(SampleCache(samples(4)), ids="tokens")(language_model(tmp_path))
