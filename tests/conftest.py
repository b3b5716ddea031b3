"""What every test needs."""

import importlib.util
import itertools
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

# A loaded machine is no error: time is measured by the benchmarks, not by property tests.
# The same examples in every run, so that what passes here passes elsewhere; QUANTRY_RANDOM_TESTS=1 looks for new ones.
settings.register_profile(
    "quantry",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    derandomize="QUANTRY_RANDOM_TESTS" not in os.environ,
)
settings.load_profile("quantry")


def _build_kernels() -> None:
    """Build the compiled kernels if their sources changed since ``pip install -e .`` built them."""
    script = Path(__file__).parents[1] / "build_kernels.py"
    spec = importlib.util.spec_from_file_location("build_kernels", script)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.build_if_outdated()


# Without any compiler the tests run on NumPy; tests/numerics then says that the library is missing.
with suppress(OSError, subprocess.CalledProcessError):
    _build_kernels()

# A shell lets what runs in its background ignore Ctrl-C, and so would all that tests start and interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def _unused_caches(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    root = tmp_path_factory.mktemp("caches")
    return (root / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def _own_cache(_unused_caches: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Point the default store to a directory that no other test uses, and never to the user's."""
    monkeypatch.setenv("QUANTRY_CACHE", str(next(_unused_caches)))
