"""Perplexity of a language model."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from quantry.data.sample_cache import SampleCache
from quantry.errors import DataError
from quantry.evaluate.tasks.task_evaluator import Outputs, TaskEvaluator, run_model


@dataclass(frozen=True, eq=False)
class Perplexity(TaskEvaluator):
    """The perplexity of a causal language model: ``exp`` of the mean negative log-likelihood of each next token.

    The tokens of a sample are its labels: position ``t`` predicts token ``t + 1``. A position counts if the attention
    mask is 1 at both. The mean is over tokens, so that long samples weigh more than short ones.

    Attributes:
        samples: The samples, with token ids [batch, length].
        ids: Name of the input with token ids.
        mask: Name of the input with the attention mask; ignored if the model does not have it.
        output: Name of the output with logits [batch, length, vocabulary]; None uses the first.
        threads: Threads inside one operator; None uses the default of the process.

    Example:
        >>> evaluator = Perplexity(SampleCache(data))  # doctest: +SKIP
        >>> evaluator("model.int4.onnx")  # doctest: +SKIP
        12.7
    """

    samples: SampleCache
    ids: str = "input_ids"
    mask: str = "attention_mask"
    output: str | None = None
    threads: int | None = None
    direction: ClassVar[str] = "minimize"

    @property
    def name(self) -> str:
        """Name of the score in tables."""
        return "perplexity"

    @property
    def size(self) -> int:
        """Number of samples."""
        return len(self.samples)

    def __call__(self, model_path: str | Path) -> float:
        """Return a model's perplexity; infinite if a token has no probability."""
        losses, tokens = self.losses(model_path, range(self.size))
        if not tokens.sum():
            raise DataError("samples must have at least two tokens, got none with more than one; in Perplexity")
        with np.errstate(over="ignore"):
            return float(np.exp(losses.sum() / tokens.sum()))

    def losses(self, model_path: str | Path, indices: Iterable[int]) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
        """Return the summed negative log-likelihood and the number of predicted tokens of some samples.

        Args:
            model_path: The model.
            indices: Indices of the samples.
        """
        wanted = list(indices)
        feeds = dict(self.samples.read(wanted))
        found = {
            index: self._loss(outputs, feeds[index], index)
            for index, outputs in run_model(model_path, self.samples, wanted, self.threads)
        }
        return np.array([found[index][0] for index in wanted]), np.array([found[index][1] for index in wanted])

    def _identity(self) -> tuple[object, ...]:
        return self.samples.data, self.ids, self.mask, self.output

    def _loss(self, outputs: Outputs, feeds: Mapping[str, NDArray[Any]], index: int) -> tuple[float, int]:
        if self.ids not in feeds:
            raise DataError(f"Perplexity.ids must be an input of the model, {list(feeds)}, got {self.ids!r}")
        name = self.output if self.output is not None else next(iter(outputs))
        if name not in outputs:
            raise DataError(f"Perplexity.output must be one of {list(outputs)}, got {name!r}")
        ids, logits = feeds[self.ids], outputs[name]
        if logits.ndim != 3 or logits.shape[:2] != ids.shape:
            raise DataError(
                f"logits must have shape [batch, length, vocabulary] for ids {list(ids.shape)}, got "
                f"{list(logits.shape)}; sample {index}, output {name!r}"
            )
        if ids.size and not 0 <= int(ids.min()) <= int(ids.max()) < logits.shape[2]:
            raise DataError(f"token ids must be 0 to {logits.shape[2] - 1}, got others; sample {index}")
        # A cache before the sample makes the mask longer than the sample.
        mask = feeds[self.mask][:, -ids.shape[1] :] if self.mask in feeds else np.ones_like(ids)
        counts = (mask[:, 1:] != 0) & (mask[:, :-1] != 0)
        scores = logits[:, :-1].astype(np.float64)
        highest = scores.max(axis=-1, keepdims=True, initial=-np.inf)
        total = np.log(np.exp(scores - highest).sum(axis=-1)) + highest[..., 0]
        chosen = np.take_along_axis(scores, ids[:, 1:, None].astype(np.int64), axis=-1)[..., 0]
        return float(((total - chosen) * counts).sum()), int(counts.sum())
