"""Distances between arrays and sessions under AMD Quark's names."""

import logging
from pathlib import Path

import numpy as np
import onnx
import pytest
from facade_models import Reader, cnn
from quantry.onnx.calibration import CachedDataReader, get_data_reader
from quantry.onnx.quantization.auto_search.auto_search_v1 import METRICS
from quantry.onnx.quantization.output_eval import (
    calculate_cos,
    calculate_l1_distance,
    calculate_l2_distance,
    calculate_psnr,
    calculate_ssim,
    eval_metrics,
)
from quantry.onnx.utils.model_utils import create_infer_session_for_onnx_model

from quantry.errors import DataError, ModelError
from quantry.onnx import ModelQuantizer, get_default_config


def test_distances_have_quarks_definitions() -> None:
    x, y = np.array([[3.0, 4.0]], np.float32), np.array([[4.0, 3.0]], np.float32)
    assert calculate_cos(x, y) == pytest.approx(0.96)
    assert calculate_l2_distance(x, y) == pytest.approx(2**0.5)
    assert calculate_l1_distance(x, y) == pytest.approx(2.0)
    assert calculate_psnr(x, y) == pytest.approx(20 * np.log10(4.0))
    assert calculate_ssim(x, y) == pytest.approx(1.0)
    found = {name: metric(x, y) for name, metric in METRICS.items()}
    assert found["cos"] == pytest.approx(0.98)
    assert (found["L1"], found["L2"]) == (1.0, 1.0)
    assert found["psnr"] == pytest.approx(20 * np.log10(255.0))
    assert METRICS["psnr"](x, x) == 100.0
    assert METRICS["cos"](x, 0 * x) == 0.0


def test_two_models_are_compared(caplog: pytest.LogCaptureFixture) -> None:
    quantized = ModelQuantizer(get_default_config("XINT8")).quantize_model(cnn(), None, Reader())
    with caplog.at_level(logging.INFO, "quantry"):
        eval_metrics(cnn(), quantized, Reader())
    assert "cosine similarity of the first output: mean 0.99" in caplog.text


def test_session_of_a_proto_and_of_a_path(tmp_path: Path) -> None:
    onnx.save(cnn(), tmp_path / "model.onnx")
    sample = Reader().get_next()
    ours, theirs = (create_infer_session_for_onnx_model(model) for model in (cnn(), tmp_path / "model.onnx"))
    assert np.array_equal(ours.run(None, sample)[0], theirs.run(None, sample)[0])
    with pytest.raises(ModelError, match="onnxruntime must accept the model"):
        create_infer_session_for_onnx_model(tmp_path / "none.onnx")


def test_readers_are_found_and_cached_in_another_layout() -> None:
    reader = Reader()
    assert get_data_reader(cnn(), reader) is reader
    assert get_data_reader(cnn(), extra_options={"UseRandomData": True}).get_next() is not None
    with pytest.raises(DataError, match="UseRandomData"):
        get_data_reader(cnn())
    (name, before), (_, after) = (
        next(iter(CachedDataReader(Reader(), 1, moved, half).get_next().items()))
        for moved, half in ((False, False), (True, True))
    )
    assert name
    assert after.dtype == np.float16
    assert after.shape == (before.shape[0], *before.shape[2:], before.shape[1])
