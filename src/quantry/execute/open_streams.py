"""Chooses what computes the activations of models: onnxruntime, or torch on a GPU."""

import logging
from collections.abc import Sequence
from importlib import util
from typing import TYPE_CHECKING, Union

import onnx_ir as ir

from quantry.data.calibration_data import CalibrationData
from quantry.execute.stream import ActivationStore, Stream
from quantry.recipe import LayerTuning
from quantry.runtime.sessions import provider_of

if TYPE_CHECKING:
    from quantry.execute.tensor_stream import TensorStream

_LOG = logging.getLogger("quantry.tune")

AnyStream = Union[Stream, "TensorStream"]


def open_streams(models: Sequence[ir.Model], data: CalibrationData, options: LayerTuning) -> list[AnyStream]:
    """Return a stream for each model.

    Args:
        models: The graphs; what the first gives for two samples at once says whether samples are joined.
        data: Samples.
        options: Where to compute and where activations are kept.

    Raises:
        RecipeError: Neither torch nor onnxruntime can compute them on the device that is asked for.
    """
    stores = [ActivationStore(options.memory, options.cache_directory) for _ in models]
    device = gpu_of(options.inference_device, models)
    if device is None:
        provider = provider_of(options.inference_device)
        return [Stream(model, data, provider, store) for model, store in zip(models, stores, strict=True)]
    from quantry.execute.tensor_stream import TensorSamples, TensorStream

    samples = TensorSamples(data, models[0], device)
    return [TensorStream(model, samples, store) for model, store in zip(models, stores, strict=True)]


def gpu_of(device: str, models: Sequence[ir.Model]) -> str | None:
    """Return torch's name of the GPU on which it can run models, or None.

    Args:
        device: ``cpu``, ``cuda:N`` or ``hip:N``.
        models: The graphs.
    """
    if device == "cpu" or util.find_spec("torch") is None:
        return None
    import torch

    from quantry.execute.sample_batches import torch_device
    from quantry.execute.tensor_stream import reason_against

    if not torch.cuda.is_available():
        return None
    reasons = [reason for reason in map(reason_against, models) if reason is not None]
    if reasons:
        _LOG.info("tune: onnxruntime computes activations on %s, not torch: %s", device, reasons[0])
        return None
    return torch_device(device)
