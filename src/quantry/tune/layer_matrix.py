"""Any tunable layer as a product of matrices.

For each of ``groups``::

    output[positions, rows] = columns[positions, width] @ weight[rows, width].T + bias[rows]

The columns of a convolution are the patches its kernel sees. A transposed convolution is a convolution of its input
with zeros in between. A normalization is one group of width 1 per channel, whose column is the normalized input.

The positions of a MatMul are tokens. A few tokens of a transformer have values a hundred times those of the others and
would dominate a squared error, although a LayerNormalization later scales all tokens to the same size. So columns and
outputs of each token are divided by the size of its output, and each token counts by its relative error.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import product
from math import prod
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from quantry.facts.operators import CONVOLUTIONS, MATRIX_PRODUCTS
from quantry.graph.edit import float_of, int_of, string_of
from quantry.tune.arrays import flip, numbers_like
from quantry.tune.layers import NORMALIZATIONS, Layer

Array = npt.NDArray[np.float32]
Indices = npt.NDArray[np.int64]

_SMALLEST = 0.01
"""Lower bound of a token's power, as a share of the power that uncorrelated inputs of its size would give."""


@dataclass(frozen=True, eq=False)
class LayerMatrix:
    """The layout of a layer's weight, input and output in that product.

    Attributes:
        layer: The layer.
        shape: Shape of its weight.
        groups: Number of independent products.
    """

    layer: Layer
    shape: tuple[int, ...]
    groups: int

    @property
    def operator(self) -> str:
        """The operator type."""
        return self.layer.node.op_type

    @property
    def width(self) -> int:
        """Number of weights of a row."""
        if self.operator == "ConvTranspose":
            return prod(self.shape) // (self.shape[1] * self.groups)
        if self.operator in NORMALIZATIONS:
            return 1
        return self.shape[0] if self.operator in MATRIX_PRODUCTS and not self.rows_first else prod(self.shape[1:])

    @property
    def channels(self) -> int:
        """Number of rows of all groups together."""
        return prod(self.shape) // self.width

    @property
    def of_tokens(self) -> bool:
        """Whether positions are tokens, each of which counts by its relative error."""
        return self.operator == "MatMul"

    @cached_property
    def _usual_power(self) -> float:
        """Power of an output for a column of power 1 that is uncorrelated with the weights."""
        return float(np.square(self.layer.initializer(self.layer.weight), dtype=np.float64).mean())

    def by_size(self, columns: Any, targets: Any) -> tuple[Any, Any]:
        """Return columns and targets with tokens divided by their size; unchanged for other layers.

        Args:
            columns: ``[groups, positions, width]``, array or tensor.
            targets: ``[groups, positions, rows]``, likewise.
        """
        if not self.of_tokens:
            return columns, targets
        power = (targets**2).mean(-1) + _SMALLEST * self._usual_power * (columns**2).sum(-1)
        size = (power + (power == 0.0))[..., None] ** 0.5
        return columns / size, targets / size

    def to_matrix(self, weight: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
        """Return a weight, or an array of its shape, as ``[groups, rows, width]``."""
        if self.operator == "Conv":
            return weight.reshape(self.groups, self.shape[0] // self.groups, -1)
        if self.operator == "ConvTranspose":
            flipped = np.flip(weight, tuple(range(2, weight.ndim)))
            inputs, rows = self.shape[0] // self.groups, self.shape[1]
            split = flipped.reshape(self.groups, inputs, rows, -1)
            return split.transpose(0, 2, 1, 3).reshape(self.groups, rows, -1)
        if self.operator in NORMALIZATIONS:
            return weight.reshape(-1, 1, 1)
        return weight[None] if self.rows_first else weight.T[None]

    def from_matrix(self, matrix: Any) -> Any:
        """Return the array or tensor that `to_matrix` was called with."""
        if self.operator == "ConvTranspose":
            inputs, rows = self.shape[0] // self.groups, self.shape[1]
            split = matrix.reshape(self.groups, rows, inputs, -1).swapaxes(1, 2).reshape(self.shape)
            return flip(split, tuple(range(2, len(self.shape))))
        if self.operator in MATRIX_PRODUCTS and not self.rows_first:
            return matrix[0].T
        return matrix.reshape(self.shape)

    def columns(self, values: Array, output: Array, most: int, random: np.random.Generator) -> tuple[Array, Array]:
        """Return columns and the outputs that belong to them.

        Args:
            values: Input of the layer.
            output: Its output for that input, or its target.
            most: Upper bound of the number of positions, which are drawn at random.
            random: The random generator.

        Returns:
            float32 ``[groups, positions, width]`` and ``[groups, positions, rows]``; tokens divided by their size.
        """
        if self.operator in MATRIX_PRODUCTS:
            positions = _chosen(values.size // values.shape[-1], most, random)
            rows = output.reshape(-1, output.shape[-1])[positions]
            return self.by_size(values.reshape(-1, values.shape[-1])[positions][None], rows[None])
        if self.operator in NORMALIZATIONS:
            return self._normalized(values, output, most, random)
        pairs = [self._patches(image, target, most, random) for image, target in zip(values, output, strict=True)]
        if len(pairs) == 1:
            return pairs[0]
        return np.concatenate([p[0] for p in pairs], axis=1), np.concatenate([p[1] for p in pairs], axis=1)

    @property
    def rows_first(self) -> bool:
        """Whether the weight of a matrix product has one row per output channel already."""
        return self.operator == "Gemm" and bool(int_of(self.layer.node, "transB", 0))

    def _normalized(self, values: Array, output: Array, most: int, random: np.random.Generator) -> tuple[Array, Array]:
        node = self.layer.node
        instance = self.operator == "InstanceNormalization"
        first = 2 if instance else int_of(node, "axis", -1) % values.ndim
        axes = tuple(range(first, values.ndim))
        mean = values.mean(axes, keepdims=True)
        spread = np.sqrt(values.var(axes, keepdims=True) + float_of(node, "epsilon", 1e-5))
        normal = (values - mean) / spread
        channels = values.shape[1] if instance else prod(values.shape[first:])

        def by_channel(array: Array) -> Array:
            return np.moveaxis(array, 1, -1).reshape(-1, channels) if instance else array.reshape(-1, channels)

        positions = _chosen(values.size // channels, most, random)
        columns, targets = by_channel(normal)[positions], by_channel(output)[positions]
        return columns.T[:, :, None].astype(np.float32), targets.T[:, :, None]

    def _patches(self, image: Array, output: Array, most: int, random: np.random.Generator) -> tuple[Array, Array]:
        """Return the patches of one image ``[channels, ...]`` and its outputs."""
        window = window_of(self.layer.node, self.shape[2:], image.shape[1:], output.shape[1:])
        image = window.spread(image)
        positions = _chosen(prod(output.shape[1:]), most, random)
        index = window.index(positions, image.shape[1:], output.shape[1:])
        channels = image.shape[0] // self.groups
        patches = image.reshape(image.shape[0], -1).take(index.reshape(-1), axis=1)  # [channels, positions * kernel]
        patches = patches.reshape(self.groups, channels, len(positions), -1).transpose(0, 2, 1, 3)
        targets = output.reshape(self.groups, -1, prod(output.shape[1:]))[:, :, positions]
        return patches.reshape(self.groups, len(positions), -1), targets.transpose(0, 2, 1)


@dataclass(frozen=True)
class Window:
    """How a kernel moves over an input, as a plain convolution; one number per spatial axis.

    Attributes:
        kernel: Size of the kernel.
        strides: Step between neighbouring outputs.
        dilations: Step between the inputs of a kernel.
        before: Zeros in front of the input; a negative number crops.
        after: Zeros after it, likewise.
        zeros: Step between input values after zeros are inserted, for a transposed convolution.
    """

    kernel: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    zeros: tuple[int, ...]

    def spread(self, image: Array) -> Array:
        """Return the image with zeros inserted and padded."""
        lengths = [(length - 1) * step + 1 for length, step in zip(image.shape[1:], self.zeros, strict=True)]
        sizes = [a + length + b for a, length, b in zip(self.before, lengths, self.after, strict=True)]
        result = np.zeros((image.shape[0], *(max(size, 0) for size in sizes)), np.float32)
        # A negative margin crops.
        inside = image
        if max(self.zeros) > 1:
            inside = np.zeros((image.shape[0], *lengths), np.float32)
            inside[(slice(None), *(slice(None, None, step) for step in self.zeros))] = image
        source = [
            slice(max(0, -a), length - max(0, -b))
            for a, length, b in zip(self.before, lengths, self.after, strict=True)
        ]
        target = [slice(max(0, a), max(0, a) + s.stop - s.start) for a, s in zip(self.before, source, strict=True)]
        result[(slice(None), *target)] = inside[(slice(None), *source)]
        return result

    def index(self, positions: Any, lengths: tuple[int, ...], outputs: tuple[int, ...]) -> Any:
        """Return for each output position the flat input positions of the kernel, ``[..., kernel]``.

        Args:
            positions: Flat positions, array or tensor of any shape.
            lengths: Lengths of the spatial axes of the input, padded.
            outputs: Lengths of those of the output.
        """
        steps = [prod(lengths[axis + 1 :]) for axis in range(len(lengths))]
        first, remaining = positions - positions, positions
        for axis in reversed(range(len(outputs))):
            first = first + remaining % outputs[axis] * (self.strides[axis] * steps[axis])
            remaining = remaining // outputs[axis]
        reach = [dilation * step for dilation, step in zip(self.dilations, steps, strict=True)]
        taps = [sum(a * b for a, b in zip(tap, reach, strict=True)) for tap in product(*map(range, self.kernel))]
        return first[..., None] + numbers_like(taps, positions)


def window_of(node: ir.Node, kernel: tuple[int, ...], inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Window:
    """Return how the kernel of a convolution moves.

    Args:
        node: The convolution, transposed or not.
        kernel: Size of its kernel.
        inputs: Lengths of the spatial axes of its input.
        outputs: Lengths of those of its output.
    """
    rank = len(kernel)
    ones = (1,) * rank
    strides, dilations = _ints(node, "strides", ones), _ints(node, "dilations", ones)
    reach = [dilation * (size - 1) for dilation, size in zip(dilations, kernel, strict=True)]
    pads = _ints(node, "pads", (0,) * 2 * rank)
    transposed = node.op_type == "ConvTranspose"
    auto = string_of(node, "auto_pad", "NOTSET")
    if auto not in ("NOTSET", "VALID"):
        pads = _automatic_pads(auto, (inputs, outputs), strides, reach, transposed=transposed)
    if not transposed:
        return Window(kernel, strides, dilations, pads[:rank], pads[rank:], ones)
    before = tuple(far - pad for far, pad in zip(reach, pads[:rank], strict=True))
    sizes = zip(outputs, inputs, strides, reach, before, strict=True)
    after = tuple(o + far - b - ((i - 1) * step + 1) for o, i, step, far, b in sizes)
    return Window(kernel, ones, dilations, before, after, strides)


def _automatic_pads(
    mode: str,
    lengths: tuple[tuple[int, ...], tuple[int, ...]],
    strides: tuple[int, ...],
    reach: list[int],
    *,
    transposed: bool,
) -> tuple[int, ...]:
    small, large = reversed(lengths) if not transposed else lengths
    totals = [
        max(0, (s - 1) * step + far + 1 - big) for s, big, step, far in zip(small, large, strides, reach, strict=True)
    ]
    less = [total // 2 for total in totals]
    more = [total - half for total, half in zip(totals, less, strict=True)]
    return tuple(less + more) if mode == "SAME_UPPER" else tuple(more + less)


def layer_matrix(layer: Layer) -> LayerMatrix:
    """Return the matrix form of a layer."""
    shape = layer.initializer(layer.weight).shape
    groups = 1
    if layer.node.op_type in CONVOLUTIONS:
        groups = int_of(layer.node, "group", 1)
    elif layer.node.op_type in NORMALIZATIONS:
        groups = prod(shape)
    return LayerMatrix(layer, shape, groups)


def _chosen(count: int, most: int, random: np.random.Generator) -> Indices:
    if count <= most:
        return np.arange(count)
    return np.sort(random.choice(count, most, replace=False))


def _ints(node: ir.Node, name: str, default: tuple[int, ...]) -> tuple[int, ...]:
    attribute = node.attributes.get(name)
    return default if attribute is None else tuple(attribute.as_ints())
