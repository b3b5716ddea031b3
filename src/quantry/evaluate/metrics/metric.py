"""What a metric is: the contract every file beside this one fulfils."""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, final

import numpy as np
from numpy.typing import NDArray

from quantry.evaluate.pairing import Pair, pair_outputs


class Metric(ABC):
    """A number that says how near the quantized model's output is to the float model's.

    An abstract class and not a protocol, because what every metric does with NaN, infinities, integers and several
    outputs is written once, here. A metric has no state: one instance serves any number of threads.

    Whoever adds one writes `formula` and four class attributes, and need not think of anything but two finite float64
    arrays of one shape. They may be of any rank, empty arrays excepted, and must not be changed.

    Attributes:
        name: What recipes and reports call it; lower case.
        aliases: Other names that `find_metric` accepts; lower case.
        higher_is_better: The direction.
        best: The score of an output that equals the reference.
        worst: The score of an output that cannot be compared: NaN or infinite where the float model's is not, or of
            another shape. No formula returns anything worse.
    """

    name: ClassVar[str]
    aliases: ClassVar[tuple[str, ...]] = ()
    higher_is_better: ClassVar[bool]
    best: ClassVar[float]
    worst: ClassVar[float]

    @abstractmethod
    def formula(self, reference: NDArray[np.float64], quantized: NDArray[np.float64]) -> float:
        """Return the score of one output of one sample.

        Args:
            reference: The float model's output; finite, not empty.
            quantized: The quantized model's output, of the same shape; finite.
        """

    @final
    def score(self, reference: NDArray[Any], quantized: NDArray[Any]) -> float:
        """Return the score of one output as the models gave it, of any type and shape.

        Args:
            reference: The float model's output.
            quantized: The quantized model's output.

        Returns:
            The score; `worst` where `pair_outputs` finds the two not comparable.
        """
        return self.score_pair(pair_outputs(reference, quantized))

    @final
    def score_pair(self, pair: Pair | None) -> float:
        """Return the score of one output that went through `pair_outputs`."""
        return self.score_outputs((pair,))

    @final
    def score_outputs(self, pairs: Sequence[Pair | None]) -> float:
        """Return one score for all outputs of a sample together.

        Args:
            pairs: One entry for each output.

        Returns:
            The score; `worst` when any output is not comparable.
        """
        comparable = [pair for pair in pairs if pair is not None]
        if len(comparable) < len(pairs):
            return self.worst
        filled = [pair for pair in comparable if pair.reference.size]
        if not filled:
            return self.best
        # Values of a float64 model may square to more than float64 holds. A formula that then arrives at infinity is
        # right, and one that arrives at NaN compared outputs as far apart as there are.
        with np.errstate(all="ignore"):
            score = float(self.joint_formula(filled))
        return self.worst if math.isnan(score) else score

    def joint_formula(self, pairs: Sequence[Pair]) -> float:
        """Return the score of several outputs: by default that of all their elements as one vector.

        An output with large values or many elements therefore weighs more than a small one.

        Args:
            pairs: The outputs, at least one, none empty.
        """
        if len(pairs) == 1:
            return self.formula(*pairs[0])
        return self.formula(
            np.concatenate([pair.reference.ravel() for pair in pairs]),
            np.concatenate([pair.quantized.ravel() for pair in pairs]),
        )
