"""What every test needs."""

import gc
import importlib
import itertools
import os
import signal
import subprocess
import sys
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


# Every collection of garbage visits the objects of torch, onnx and thousands of tests, which are never garbage.
gc.set_threshold(50_000, 10, 10)


def pytest_collection_finish() -> None:
    """Leave what the collected tests are made of out of later collections."""
    gc.collect()
    gc.freeze()


# The root of the project: tests import `build_kernels` and `benchmarks`.
sys.path.append(str(Path(__file__).parents[1]))

# `pip install -e .` has built the compiled kernels; this builds them again after a change of their sources. Without any
# compiler the tests run on NumPy, and tests/numerics reports that the library is missing.
with suppress(OSError, subprocess.CalledProcessError):
    importlib.import_module("build_kernels").build_if_outdated()

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
