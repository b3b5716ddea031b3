"""A product with a constant weight, for formats that replace it by another operator."""

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from quantry.emit.graph_editor import GraphEditor
from quantry.facts.operators import MATRIX_PRODUCTS
from quantry.graph.quant_plan import QuantPlan


@dataclass(frozen=True)
class ProductNode:
    """A Conv, MatMul or Gemm whose second operand is a planned weight.

    Attributes:
        node: The float node.
        weight: Name of the weight.
        bias: Its constant bias, if any.
        transposed: Whether the weight is stored as [N, K], as in Gemm.
    """

    node: ir.Node
    weight: ir.Value
    bias: ir.Value | None = None
    transposed: bool = False

    @property
    def data(self) -> ir.Value:
        """Its current input: the product before it may have been replaced."""
        data = self.node.inputs[0]
        assert data is not None
        return data

    @property
    def is_matrix(self) -> bool:
        """Whether the weight is a matrix."""
        return self.node.op_type in MATRIX_PRODUCTS and self.weight.shape is not None and len(self.weight.shape) == 2

    @property
    def alpha(self) -> float:
        """Gemm's factor of the product."""
        return self.node.attributes.get_float("alpha", 1.0)

    @property
    def name(self) -> str:
        """Name of the node."""
        return self.node.name or ""

    def matrix(self, values: np.ndarray) -> np.ndarray:
        """Return an array with the weight's shape as [K, N]."""
        return values.T if self.transposed else values

    def data_nodes(self, editor: GraphEditor) -> list[ir.Node]:
        """Return the Transpose that Gemm needs before its data, if any."""
        if not self.node.attributes.get_int("transA", 0):
            return []
        return [editor.node(("", "Transpose"), [self.data], f"{self.name}_Transpose", {"perm": [1, 0]})]

    def bias_node(self, editor: GraphEditor, product: ir.Value) -> list[ir.Node]:
        """Return the addition of the bias to the product, if any.

        Args:
            editor: Creates nodes and constants.
            product: The product without the bias.
        """
        if self.bias is None:
            return []
        assert self.bias.const_value is not None
        values = self.bias.const_value.numpy()
        if self.node.op_type == "Conv":
            assert self.weight.shape is not None
            values = values.reshape(-1, *[1] * (len(self.weight.shape) - 2))
        beta = np.float32(self.node.attributes.get_float("beta", 1.0))
        constant = editor.constant(np.asarray(values * beta, np.float32), f"{self.bias.name}_added")
        return [editor.node(("", "Add"), [product, constant], f"{self.name}_bias_Add")]

    def replace_by(self, chain: list[ir.Node]) -> None:
        """Replace this node by others; the last one's output gets its name and its readers."""
        graph = self.node.graph
        assert graph is not None
        ir.convenience.replace_nodes_and_values(
            graph, self.node, [self.node], chain, [self.node.outputs[0]], [chain[-1].outputs[0]]
        )


def product_nodes(model: ir.Model, plan: QuantPlan) -> list[ProductNode]:
    """Return the products of a plan that have a constant right operand, in graph order.

    Args:
        model: The float model.
        plan: The quantized weights and their nodes.
    """
    products = []
    for node in model.graph:
        weight = node.inputs[1] if len(node.inputs) > 1 else None
        planned = None if weight is None else plan.weights.get(weight.name or "")
        if node.op_type not in ("Conv", *MATRIX_PRODUCTS) or planned is None or node.name not in planned.users:
            continue
        bias = node.inputs[2] if len(node.inputs) > 2 else None
        assert weight is not None
        products.append(ProductNode(node, weight, bias, bool(node.attributes.get_int("transB", 0))))
    return products
