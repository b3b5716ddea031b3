"""A sentence encoder, by Spearman correlation with human judgement."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from benchmarks.accuracy.classification import exported
from benchmarks.accuracy.evaluation_script import load_script
from benchmarks.accuracy.score import Run, Score, bootstrap
from benchmarks.locations import NotAvailable, shared
from benchmarks.workloads.sample_folder import Sample

_CALIBRATED, _RESAMPLED = 128, 1000


@dataclass(frozen=True)
class SentenceSuite:
    """The sentence encoder of the shared data; calibrated on the development split, measured on the test split."""

    name: str = "minilm_stsb"
    metric: str = "Spearman"

    def model(self) -> Path:
        """Return the float model, exported on first use into the benchmarks' cache."""
        return exported(self.name, shared(self.name, "minilm_l6_fp16.npz"))

    def calibration(self) -> Iterator[Sample]:
        """Yield the first sentences of the development split, each alone and without padding."""
        script = load_script(shared(self.name, "eval.py"))
        with np.load(shared(self.name, "stsb_tokens.npz")) as tokens:
            sentences = script.sentences(tokens, "dev", "a")
        for ids in islice(sentences, _CALIBRATED):
            yield {"ids": ids[None], "mask": np.ones_like(ids)[None]}

    def more_samples(self) -> Iterator[Sample]:
        """Yield sentences of the test split, each alone and without padding."""
        script = load_script(shared(self.name, "eval.py"))
        with np.load(shared(self.name, "stsb_tokens.npz")) as tokens:
            sentences = script.sentences(tokens, "test", "a")
        for ids in sentences:
            yield {"ids": ids[None], "mask": np.ones_like(ids)[None]}

    def score(self, model: Path, limit: int | None, run: Run | None = None) -> Score:
        """Evaluate a model on the test split."""
        import onnxruntime

        if run is not None:
            raise NotAvailable("sentences have two inputs of any length, which no target with static shapes runs")
        script = load_script(shared(self.name, "eval.py"))
        session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])

        with np.load(shared(self.name, "stsb_tokens.npz")) as tokens:
            human = tokens["test_score"][:limit]
            sides = [script.sentences(tokens, "test", side)[:limit] for side in ("a", "b")]
        a, b = (
            script.embed(lambda ids, mask: session.run(None, {"ids": ids, "mask": mask})[0], sentences)
            for sentences in sides
        )
        cosine = (a * b).sum(1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
        replicates = bootstrap(len(human), _RESAMPLED, lambda i: script.spearman(cosine[i], human[i]))
        return Score(script.spearman(cosine, human), len(human), replicates, {})
