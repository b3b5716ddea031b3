"""Opens onnxruntime sessions for parts of a float or simulated model."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quantry.errors import ModelError, RecipeError
from quantry.observe.observation_session import encoded
from quantry.observe.segments import Segment

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

# With these off, a simulated model computes exactly what its pairs say; see quantry.evaluate.sessions.
_UNFAITHFUL_OPTIMIZERS = ["ReluQuantRewrite", "ClipQuantRewrite", "WeightBiasQuantization"]

_PROVIDERS = {"cuda": ("CUDAExecutionProvider",), "hip": ("ROCMExecutionProvider", "MIGraphXExecutionProvider")}

CPU_PROVIDER = "CPUExecutionProvider"

Provider = tuple[str, Mapping[str, Any]]


def provider_of(device: str) -> Provider:
    """Return the execution provider of a device.

    Args:
        device: ``cpu``, ``cuda:N`` or ``hip:N``.

    Raises:
        RecipeError: This onnxruntime has none for it.
    """
    import onnxruntime

    kind, _, number = device.partition(":")
    if kind == "cpu":
        return CPU_PROVIDER, {}
    available = onnxruntime.get_available_providers()
    for name in _PROVIDERS[kind]:
        if name in available:
            return name, {"device_id": int(number.split(",")[0])}
    raise RecipeError(
        f"the device to compute activations on must be one that onnxruntime has a provider for, got {device!r} with "
        f"{available}; inference_device"
    )


def open_part(segment: Segment, provider: Provider, *, threads: int) -> "InferenceSession":
    """Return a session that computes exactly what a part of a model says.

    Args:
        segment: The part.
        provider: Where it runs.
        threads: How many threads compute one sample.

    Raises:
        ModelError: onnxruntime cannot load it.
    """
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    # Sessions take turns: threads that spin after a run would take the cores from the next one.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    options.intra_op_num_threads = threads
    options.enable_mem_pattern = False
    # A session serves for a moment; an arena of its own would only grow.
    options.enable_cpu_mem_arena = False
    options.log_severity_level = 4
    try:
        return onnxruntime.InferenceSession(
            encoded(segment),
            options,
            providers=[(provider[0], dict(provider[1]))],
            disabled_optimizers=_UNFAITHFUL_OPTIMIZERS,
        )
    except Exception as error:
        raise ModelError(f"onnxruntime must be able to load the model, got {error}; in tune") from error
