"""What tests of observe compare with: onnxruntime with every tensor exposed, and numpy."""

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime

from quantry.graph.float_model import FloatModel
from quantry.numerics.histogram import Distribution, TensorStats

CPU = ("CPUExecutionProvider",)


def float_model(text, opset=17, ir_version=8, **weights):
    """A FloatModel from the text of a graph; weights are added as initializers and types are inferred."""
    graph = onnx.parser.parse_graph(text)
    for name, array in weights.items():
        graph.initializer.append(onnx.numpy_helper.from_array(np.asarray(array), name))
    proto = onnx.helper.make_model(
        graph, ir_version=ir_version, opset_imports=[onnx.helper.make_opsetid("", opset)], producer_name="test"
    )
    return FloatModel(ir.from_proto(onnx.shape_inference.infer_shapes(proto, strict_mode=True, data_prop=True)))


def exposed(model, samples):
    """Every float32 activation of every sample, as stock onnxruntime computes it: a list of dicts."""
    proto = ir.to_proto(model.model)
    names = [name for node in proto.graph.node for name in node.output if name]
    have = {output.name for output in proto.graph.output}
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in have)
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=list(CPU))
    results = []
    for sample in samples:
        values = dict(zip(names, session.run(names, sample), strict=True)) | sample
        results.append({n: v for n, v in values.items() if isinstance(v, np.ndarray) and v.dtype == np.float32})
    return results


def histogram(values):
    """Codes and counts of the finite values, by numpy."""
    flat = np.ascontiguousarray(values, np.float32).reshape(-1)
    codes, counts = np.unique(flat[np.isfinite(flat)].view(np.uint32) >> 16, return_counts=True)
    return codes.astype(np.uint16), counts


def quantiles(distribution: Distribution, probabilities):
    """Quantiles of mass spread evenly within intervals."""
    ends = np.concatenate([[0.0], np.cumsum(distribution.counts)])
    wanted = np.asarray(probabilities) * ends[-1]
    place = np.clip(np.searchsorted(ends, wanted, side="right") - 1, 0, len(distribution.counts) - 1)
    inside = (wanted - ends[place]) / distribution.counts[place]
    return distribution.lower[place] + np.clip(inside, 0, 1) * (distribution.upper - distribution.lower)[place]


def assert_exactly(stats: TensorStats, arrays):
    """The statistics are those of the arrays, one for each sample, to the last bit."""
    everything = np.concatenate([np.asarray(array, np.float32).reshape(-1) for array in arrays])
    finite = everything[np.isfinite(everything)]
    codes, counts = histogram(everything)
    np.testing.assert_array_equal(stats.codes, codes)
    np.testing.assert_array_equal(stats.counts, counts)
    assert stats.count == everything.size
    assert stats.nan_count == np.isnan(everything).sum()
    assert stats.inf_count == np.isinf(everything).sum()
    assert stats.minimum == finite.min(initial=np.inf)
    assert stats.maximum == finite.max(initial=-np.inf)
    assert len(stats.batch_minima) == len(arrays)
    for low, high, array in zip(stats.batch_minima, stats.batch_maxima, arrays, strict=True):
        finite = array[np.isfinite(array)]
        assert low == finite.min(initial=np.inf)
        assert high == finite.max(initial=-np.inf)


def assert_closely(stats: TensorStats, arrays, name=""):
    """Counts are exact, extrema are so to rounding, and quantiles within two bins."""
    everything = np.concatenate([array.reshape(-1) for array in arrays])
    assert stats.count == everything.size == stats.counts.sum()
    span = max(float(np.ptp(everything)), 1e-30)
    tolerance = 1e-6 * max(span, float(np.abs(everything).max()))
    lows, highs = [array.min() for array in arrays], [array.max() for array in arrays]
    np.testing.assert_allclose(stats.batch_minima, lows, rtol=2e-6, atol=tolerance, err_msg=name)
    np.testing.assert_allclose(stats.batch_maxima, highs, rtol=2e-6, atol=tolerance, err_msg=name)
    assert stats.minimum == stats.batch_minima.min()
    assert stats.maximum == stats.batch_maxima.max()
    probabilities = np.linspace(0, 1, 101)
    derived = quantiles(stats.distribution(), probabilities)
    # Between two values the quantile may be anything, so it is held against its two neighbours among the values.
    ordered = np.sort(everything)
    rank = probabilities * (len(ordered) - 1)
    below = ordered[np.floor(rank - 1).clip(0).astype(int)]
    above = ordered[np.ceil(rank + 1).clip(max=len(ordered) - 1).astype(int)]
    slack = 2 * 2.0**-7 * np.maximum(np.abs(below), np.abs(above)) + 2e-3 * span
    assert (derived >= below - slack).all(), name
    assert (derived <= above + slack).all(), name
