"""Shared fixtures of the search tests."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from small_network import Distance, random_samples, small_space, write_network

from quantry.autosearch import Space


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_network(tmp_path_factory.mktemp("network") / "net.onnx")


@pytest.fixture
def samples() -> list[dict[str, NDArray[np.float32]]]:
    return random_samples(4)


@pytest.fixture
def distance(network: Path) -> Distance:
    return Distance(network)


@pytest.fixture
def space() -> Space:
    return small_space()
