"""Models and samples that the rows run on."""

from benchmarks.workloads.conv_chain import ConvChain
from benchmarks.workloads.evaluated_model import EvaluatedModel
from benchmarks.workloads.large_model import LargeModel
from benchmarks.workloads.quantized_model import QuantizedModel
from benchmarks.workloads.shared_model import SharedModel

__all__ = ["ConvChain", "EvaluatedModel", "LargeModel", "QuantizedModel", "SharedModel"]
