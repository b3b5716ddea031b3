"""What costs most elsewhere: finetuning every layer, and how near outputs come to those of the float model by it."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.harness import Comparison, Goal, QualityGoal, Row, Side
from benchmarks.rows.quantize import QUANTRY, QUARK
from benchmarks.workloads import EvaluatedModel, SharedModel
from quantry.recipe import Gptq, LayerTraining, Recipe, TuneOptions, find_preset, to_plain

_INFER = "benchmarks.tasks.inference:infer"
_EVALUATE = "benchmarks.tasks.output_quality:evaluate"

_UNTUNED = "XINT8"
_GPTQ = Gptq(damping=0.1)
"""The damping of the recommended recipes."""

_FASTER = Goal("seconds", at_least=10)
_AS_GOOD = QualityGoal("sqnr_db", loss=0.1)
_LEAN = Goal("peak_bytes", at_most=2.0, allowance=256 * 2.0**20)


@dataclass(frozen=True)
class _Model:
    """A model to finetune.

    Attributes:
        suite: Its name among the suites.
        title: Its name in the table.
        samples: Number of calibration images, on both sides.
        iterations: For each layer, on both sides.
        held_out: Number of held-out images that outputs are compared on.
        every: Take every n-th held-out image, because images may be sorted by class.
    """

    suite: str
    title: str
    samples: int
    iterations: int
    held_out: int
    every: int = 1

    def side(self, label: str, task: str, arguments: Mapping[str, Any], *, peer: bool = False) -> Side:
        """Return a side that writes a model, which is then evaluated."""
        name = f"tune-{self.suite}-{label.replace(' ', '-').replace(',', '')}.onnx"
        workload = EvaluatedModel(SharedModel(self.suite, self.samples), name, self.held_out, self.every)
        return Side(label, task, arguments, workload, peer=peer, evaluate=_EVALUATE)


_RESNET20 = _Model("cifar10", "resnet20", samples=64, iterations=1000, held_out=1000, every=5)
_EFFICIENTNET = _Model("efficientnet_lite0", "efficientnet_lite0", samples=32, iterations=1000, held_out=125, every=8)


def _plain(recipe: Recipe) -> dict[str, Any]:
    return {"recipe": dict(to_plain(recipe))}


def _trained(preset: str, **options: Any) -> dict[str, Any]:
    """Return a preset with other options of its training."""
    recipe = find_preset(preset).recipe
    steps = (replace(step, **options) if isinstance(step, LayerTraining) else step for step in recipe.tune.steps)
    return _plain(replace(recipe, tune=TuneOptions(tuple(steps))))


def _row(name: str, algorithm: str, preset: str, model: _Model) -> Row:
    gptq = _plain(replace(find_preset(_UNTUNED).recipe, tune=TuneOptions((_GPTQ,))))
    finetune = {"preset": preset, "finetune": {"NumIterations": model.iterations}}
    ours = ("quantry", "quantry, no early stop", "quantry with GPTQ")
    return Row(
        name=name,
        title=f"{algorithm} of all layers ({preset}, {model.iterations} iterations), {model.title}, "
        f"{model.samples} images",
        sides=(
            model.side("quantry", QUANTRY, _trained(preset, iterations=model.iterations)),
            # The presets of both tools stop early, but the peer's AdaRound watches a term that falls to the end.
            model.side(
                "quantry, no early stop", QUANTRY, _trained(preset, iterations=model.iterations, early_stop=False)
            ),
            model.side("quantry with GPTQ", QUANTRY, gptq),
            model.side("quantry, not tuned", QUANTRY, {"recipe": _UNTUNED}),
            model.side("quark", QUARK, finetune, peer=True),
            model.side("quark, not tuned", QUARK, {"preset": _UNTUNED}, peer=True),
            Side("plain inference", _INFER, {}, SharedModel(model.suite, model.samples)),
        ),
        comparisons=(
            *(Comparison("quark", label, (_FASTER, _AS_GOOD)) for label in ours),
            *(Comparison(label, "plain inference", (_LEAN,), larger_is_better=False) for label in ours),
        ),
        repetitions=2,
        timeout=1800.0,
    )


ROWS = (
    _row("tune/adaround", "AdaRound", "XINT8_ADAROUND", _RESNET20),
    _row("tune/adaquant", "AdaQuant", "XINT8_ADAQUANT", _RESNET20),
    _row("tune/adaround/efficientnet_lite0", "AdaRound", "XINT8_ADAROUND", _EFFICIENTNET),
    _row("tune/adaquant/efficientnet_lite0", "AdaQuant", "XINT8_ADAQUANT", _EFFICIENTNET),
)
