"""One capture and one calibration for all tests; each test works on a copy."""

import copy

import pytest
import torch
from torch import fx
from torch_nets import SmallNet, batches

from quantry.recipe import (
    DataType,
    MinMSE,
    NpuLimits,
    OwnBias,
    PlanOptions,
    PowerOfTwoScale,
    Recipe,
    ScaleOptions,
    TensorSpec,
)
from quantry.torchfront import QuantizedModule, capture, quantize_graph


@pytest.fixture(scope="session")
def npu_recipe() -> Recipe:
    spec = TensorSpec(DataType.INT8, scale=PowerOfTwoScale())
    return Recipe(
        plan=PlanOptions(activation=spec, weight=spec, bias=OwnBias(spec), force_pass_through=True),
        scale=ScaleOptions(activation=MinMSE(), weight=MinMSE(), npu=NpuLimits()),
    )


@pytest.fixture(scope="session")
def net() -> SmallNet:
    torch.set_num_threads(1)
    return SmallNet().eval()


@pytest.fixture(scope="session")
def captured(net: SmallNet) -> fx.GraphModule:
    return capture(net, torch.randn(1, 3, 12, 12))


@pytest.fixture(scope="session")
def calibrated(captured: fx.GraphModule, npu_recipe: Recipe) -> QuantizedModule:
    return quantize_graph(captured, batches(), npu_recipe)


@pytest.fixture
def quantized(calibrated: QuantizedModule) -> QuantizedModule:
    return copy.deepcopy(calibrated)
