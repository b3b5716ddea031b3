"""Outlier-channel splitting, after Zhao et al. 2019 (https://arxiv.org/abs/1901.09504).

::

    y = w_0 x_0 + w_1 x_1      |w_1| large        y = w_0 x_0 + (w_1 / 2) x_1 + (w_1 / 2) x_1

The largest magnitude of a weight determines its single scale. One more channel halves it.
"""

from collections import Counter

import numpy as np
import onnx_ir as ir

from quantry.equalize.channel_class import ChannelClass, Reader, channel_class, linear_layers, reindex
from quantry.equalize.channel_groups import WeightStep, changed_for_one_scale
from quantry.equalize.linear_layer import LinearLayer, array_of
from quantry.graph.float_model import FloatModel
from quantry.memo import stage
from quantry.recipe import OutlierSplitting, TensorSpec
from quantry.runtime.environment import depends_on


@stage(name="split_outliers", version=1, environment=depends_on("onnx_ir", "numpy"))
def split_outliers(model: FloatModel, options: OutlierSplitting, weight: TensorSpec) -> FloatModel:
    """Return a model that computes the same, with some channels duplicated, and the weights that read them halved.

    Args:
        model: The model; it is not modified.
        options: How many channels, and when.
        weight: Type of the weights.
    """
    return changed_for_one_scale(model, weight, "outlier splitting", lambda copy, step: _Splitting(copy, options, step))


class _Splitting:
    """Splits the channels of a model, one class after the other."""

    def __init__(self, model: ir.Model, options: OutlierSplitting, step: WeightStep) -> None:
        self.model = model
        self.added = 0
        self._options = options
        self._step = step
        self._layers = 0
        self._declined: Counter[str] = Counter()

    def run(self) -> bool:
        """Split the channels that gain enough, and return whether there is any."""
        done: set[ir.Node] = set()
        for node in linear_layers(self.model):
            if node in done:
                continue
            # Splitting changes the shapes of layers, so find them again.
            layers = linear_layers(self.model)
            layer = layers[node]
            found = layer if isinstance(layer, str) else channel_class(layer, layers)
            if isinstance(found, str):
                self._declined[found] += 1
                continue
            done.update(one.node for one in (*found.makers, *found.carriers))
            if not self._split_class(found):
                self._declined["splitting would not lower the error of the layers after it enough"] += 1
        return self.added > 0

    def _split_class(self, channels: ChannelClass) -> bool:
        """Split channels of a class for the reader with the largest error; return whether any was split."""
        # One order must serve all readers, so the one with the largest error decides.
        worst = max(channels.readers, key=lambda reader: self._error(reader.layer))
        before = self._error(worst.layer)
        if before <= self._options.tolerance:
            return False
        order = self._order(_peaks(worst, channels.count), _others(worst, channels.count))
        if len(order) == channels.count:
            return False
        if channels.rigid:
            self._declined[channels.rigid] += 1
            return False
        reindex(channels, order)
        self._layers += 1
        self.added += len(order) - channels.count
        return True

    def _order(self, peaks: np.ndarray, other: float) -> np.ndarray:
        """Return channels with outliers twice or more often, or every channel once if that does not gain enough.

        Args:
            peaks: (C,) the largest magnitude among the weights that read a channel.
            other: The largest among those of the layer that read none of them.
        """
        times = np.ones(len(peaks), dtype=np.int64)
        whole = self._squared(max(other, float(peaks.max())))
        # Always halve what is largest now; a channel may be split several times.
        for _ in range(max(1, int(self._options.share * len(peaks)))):
            times[int(np.argmax(peaks / times))] += 1
        if whole < self._options.gain * self._squared(max(other, float((peaks / times).max()))):
            times[:] = 1
        return np.repeat(np.arange(len(peaks)), times)

    def _squared(self, peak: float) -> float:
        return float(self._step.squared(np.array(peak)))

    def _error(self, layer: LinearLayer) -> float:
        weight = np.asarray(array_of(layer.weight), dtype=np.float64)
        square = float((weight**2).mean())
        return self._squared(float(np.abs(weight).max())) / square if square > 0 else 0.0

    def notes(self) -> tuple[str, ...]:
        """Return what was changed, and why other layers were not."""
        summary = f"outlier splitting added {self.added} channels to {self._layers} tensors"
        left = sorted((+self._declined).items())
        return (summary, *(f"no outlier splitting after {count} layers: {reason}" for reason, count in left))


def _peaks(reader: Reader, count: int) -> np.ndarray:
    inputs = _input_peaks(reader.layer)
    if reader.position.flattened:
        inputs = inputs.reshape(count, -1).max(axis=1)
    return inputs[reader.position.start : reader.position.start + count]


def _others(reader: Reader, count: int) -> float:
    if reader.position.flattened:
        return 0.0
    inputs, start = _input_peaks(reader.layer), reader.position.start
    return float(np.delete(inputs, slice(start, start + count)).max(initial=0.0))


def _input_peaks(layer: LinearLayer) -> np.ndarray:
    view = layer.layout.view(np.ascontiguousarray(array_of(layer.weight)))
    peaks: np.ndarray = np.abs(view[0].astype(np.float64)).max(axis=(0, 2))
    return peaks
