"""What a file does not keep of a weight does not make a model another one."""

import numpy as np
import onnx
from onnx import helper, numpy_helper

from quantry.graph.float_model import FloatModel
from quantry.graph.load import model_source
from quantry.prepare import prepare
from quantry.recipe import PrepareOptions


def annotated_model() -> onnx.ModelProto:
    """One product whose weight carries metadata and a description, as torch's exporter writes them."""
    weight = numpy_helper.from_array(np.ones((4, 2), np.float32), "w")
    info = helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [4, 2], doc_string="of the encoder")
    info.metadata_props.add(key="pkg.torch.onnx.original_node_name", value="p_encoder_w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"], "product")],
        "annotated",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 4])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 2])],
        [weight],
        value_info=[info],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


def test_model_with_annotated_weights_has_the_digest_of_the_one_that_is_read_back():
    prepared = prepare(model_source(annotated_model()), PrepareOptions())
    blob = prepared.to_blob()
    assert blob is not None
    assert prepared.__fingerprint__() == FloatModel.from_blob(blob).__fingerprint__()
