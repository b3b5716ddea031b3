"""Stage keys contain versions, builds of kernels and kinds of devices."""

import platform

import numpy as np
import onnxruntime
import pytest

from quantry.numerics import kernels
from quantry.recipe import AdaRound, BiasCorrection, ObserveOptions
from quantry.runtime import environment as module
from quantry.runtime.environment import depends_on, device_kind, environment, processor_kind
from quantry.tune import tune


def test_versions_of_libraries_are_named_and_a_missing_one_is_too() -> None:
    found = environment(libraries=("onnxruntime", "no_such_library"))
    assert found["onnxruntime"] == onnxruntime.__version__
    assert found["no_such_library"] == "none"
    assert "kernels" not in found


def test_stage_of_numpy_depends_on_its_version_and_on_the_processor() -> None:
    assert depends_on("numpy")({}) == {"numpy": np.__version__, "devices": processor_kind()}


def test_switching_the_kernels_off_changes_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(kernels.SWITCH, raising=False)
    monkeypatch.setattr("quantry.numerics.kernels.loaded", kernels.loaded.__wrapped__)
    on = environment(kernels=True)["kernels"]
    monkeypatch.setattr("quantry.numerics.kernels.loaded", lambda: None)
    assert environment(kernels=True)["kernels"] == "numpy" != on


def test_processor_is_named_by_architecture_and_vector_extension() -> None:
    assert processor_kind().startswith(platform.machine())
    assert device_kind("cpu") == device_kind("CPUExecutionProvider") == processor_kind()


@pytest.mark.parametrize("device", ["cuda:1", "hip:1", "CUDAExecutionProvider"])
def test_gpu_is_named_by_its_model(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_gpu_model", lambda number: f"model {number}")
    assert device_kind(device) == f"{device.partition(':')[0]} model {1 if ':' in device else 0}"


def test_key_of_a_tuning_step_contains_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tune.environment is not None
    on_cpu = tune.environment({"step": AdaRound()})
    assert set(on_cpu) == {"onnxruntime", "torch", "numpy", "kernels", "devices"}
    assert on_cpu["devices"] == processor_kind() == tune.environment({"step": BiasCorrection()})["devices"]
    seen = set()
    for gpu in ("one", "another"):
        monkeypatch.setattr(module, "_gpu_model", lambda _number, gpu=gpu: gpu)
        seen.add(tune.environment({"step": AdaRound(device="cuda:0")})["devices"])
    assert seen == {f"{processor_kind()}, cuda one", f"{processor_kind()}, cuda another"}


def test_key_of_an_observation_contains_its_device(monkeypatch: pytest.MonkeyPatch) -> None:
    from quantry.observe import observe

    monkeypatch.setattr(module, "_gpu_model", lambda _number: "some model")
    assert observe.environment is not None
    options = ObserveOptions(providers=("CUDAExecutionProvider", "CPUExecutionProvider"))
    assert observe.environment({"options": options})["devices"] == (
        f"CUDAExecutionProvider some model, {processor_kind()}"
    )
