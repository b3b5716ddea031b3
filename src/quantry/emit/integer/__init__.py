"""Integer kernels: which operator computes on integers what a float operator between DQ and Q computes.

To add one: write a function from `Unit` to the new node, or to None where no kernel computes it, and name it in
`KERNELS`.
"""

from quantry.emit.integer.activation import leaky_relu, sigmoid, softmax
from quantry.emit.integer.bounds import bounds
from quantry.emit.integer.elementwise import add, concat, multiply
from quantry.emit.integer.movement import MOVEMENT, move, pad
from quantry.emit.integer.pooling import average_pool, global_average_pool
from quantry.emit.integer.product import conv, gemm, matmul
from quantry.emit.integer.unit import Kernel, Side, Unit, quantized_source

KERNELS: dict[str, Kernel] = {
    "Conv": conv,
    "MatMul": matmul,
    "Gemm": gemm,
    "Add": add,
    "Mul": multiply,
    "Concat": concat,
    "Sigmoid": sigmoid,
    "LeakyRelu": leaky_relu,
    "Softmax": softmax,
    "AveragePool": average_pool,
    "GlobalAveragePool": global_average_pool,
    "Pad": pad,
    "Relu": bounds,
    "Clip": bounds,
    **dict.fromkeys(MOVEMENT, move),
}

__all__ = ["KERNELS", "Kernel", "Side", "Unit", "quantized_source"]
