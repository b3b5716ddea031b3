import dataclasses

import numpy as np
import pytest

from quantry.errors import InternalError
from quantry.evaluate import Evaluation, MetricScore, find_metric
from quantry.evaluate.latency import summarize_pairs
from quantry.memo import DirectoryStore, MemoryStore, fingerprint
from quantry.notes import Note


def _score(name, *per_sample):
    return MetricScore.of_samples(find_metric(name), np.array(per_sample))


@pytest.fixture
def evaluation():
    return Evaluation(
        metrics={"l1": _score("l1", 0.5, np.inf), "cosine": _score("cosine", 0.9, -1.0)},
        outputs={
            "boxes/0": {"l1": _score("l1", 0.1, 0.2), "cosine": _score("cosine", 1.0, 0.25)},
            "scores": {"l1": _score("l1", 0.9, np.inf), "cosine": _score("cosine", 0.5, -1.0)},
        },
        samples=2,
        float_bytes=4_000,
        quantized_bytes=1_100,
        latency=summarize_pairs(np.array([[2.0, 1.0], [3.0, 1.0]])),
        notes=(Note.of("output {output!r} is odd", output="scores"),),
    )


def _same(one, other):
    return fingerprint(one) == fingerprint(other) and one.to_blob() == other.to_blob()


@pytest.mark.parametrize("kind", ["memory", "directory"])
def test_evaluation_comes_back_from_a_store(evaluation, kind, tmp_path):
    store = MemoryStore() if kind == "memory" else DirectoryStore(tmp_path)
    digest = fingerprint(evaluation)
    store.put(digest, evaluation.to_blob())
    back = Evaluation.from_blob(store.get(digest))
    assert _same(back, evaluation)
    assert list(back.outputs) == ["boxes/0", "scores"]
    assert back.metrics["l1"].value == np.inf
    assert back.metrics["l1"].interval == evaluation.metrics["l1"].interval
    assert not back.metrics["l1"].higher_is_better
    np.testing.assert_array_equal(back.outputs["scores"]["cosine"].per_sample, [0.5, -1.0])
    assert back.latency == evaluation.latency
    # A store keeps notes with the key of the call, not with the blob.
    assert back.notes == ()
    assert Evaluation.from_blob(evaluation.to_blob()).notes == evaluation.notes


def test_evaluation_without_metrics_comes_back_too():
    empty = Evaluation({}, {}, 0, 10, 5)
    back = Evaluation.from_blob(empty.to_blob())
    assert _same(back, empty)
    assert dict(back.metrics) == {}
    assert back.latency is None


def test_identity_is_without_the_notes(evaluation):
    assert _same(dataclasses.replace(evaluation, notes=()), evaluation)


def test_identity_is_without_the_times(evaluation):
    other_times = dataclasses.replace(evaluation, latency=summarize_pairs(np.array([[2.5, 1.5], [9.0, 1.0]])))
    assert fingerprint(other_times) == fingerprint(evaluation)


@pytest.mark.parametrize(
    "change",
    [
        {"latency": None},
        {"latency": summarize_pairs(np.array([[2.0, 1.0]]))},
        {"latency": dataclasses.replace(summarize_pairs(np.array([[2.0, 1.0]] * 2)), machine="another")},
        {"samples": 3},
        {"quantized_bytes": 1},
        {"metrics": {"l1": _score("l1", 0.5, 0.5)}},
        {"outputs": {}},
    ],
    ids=["no-times", "runs", "machine", "samples", "bytes", "scores", "outputs"],
)
def test_identity_sees_everything_else(evaluation, change):
    assert fingerprint(dataclasses.replace(evaluation, **change)) != fingerprint(evaluation)


def test_evaluation_cannot_be_changed(evaluation):
    with pytest.raises(TypeError):
        evaluation.metrics["l1"] = evaluation.metrics["cosine"]
    with pytest.raises(TypeError):
        evaluation.outputs["scores"]["l1"] = evaluation.metrics["cosine"]
    with pytest.raises(ValueError, match="read-only"):
        evaluation.metrics["l1"].per_sample[0] = 0


def test_a_score_is_the_mean_with_its_interval():
    score = _score("l2", 1.0, 2.0, 6.0)
    assert score.value == 3
    assert score.interval[0] < 3 < score.interval[1]


def test_better_follows_the_direction():
    assert _score("l1", 1.0).is_better_than(_score("l1", 2.0))
    assert _score("cosine", 0.9).is_better_than(_score("cosine", 0.8))
    assert not _score("cosine", 0.9).is_better_than(_score("cosine", 0.9))
    with pytest.raises(InternalError, match="must be of one metric"):
        _score("l1", 1.0).is_better_than(_score("l2", 1.0))
