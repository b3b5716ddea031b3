"""Parts of the JSON Schemas of commands: one function per kind of value, and what several commands print."""

from collections.abc import Mapping
from typing import Any

Schema = dict[str, Any]


def kind(name: str, meaning: str, **more: Any) -> Schema:
    """Return the schema of a JSON type."""
    return {"type": name, "description": meaning, **more}


def text(meaning: str) -> Schema:
    """Return the schema of a text."""
    return kind("string", meaning)


def count(meaning: str) -> Schema:
    """Return the schema of a whole number."""
    return kind("integer", meaning)


def flag(meaning: str) -> Schema:
    """Return the schema of true or false."""
    return kind("boolean", meaning)


def number(meaning: str) -> Schema:
    """Return the schema of a number."""
    # JSON has no infinities: they are texts.
    return {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}], "description": meaning}


def items(of: Schema, meaning: str) -> Schema:
    """Return the schema of a list."""
    return kind("array", meaning, items=of)


def texts(meaning: str) -> Schema:
    """Return the schema of a list of texts."""
    return items({"type": "string"}, meaning)


def by_name(of: Schema, meaning: str) -> Schema:
    """Return the schema of a mapping from any names."""
    return kind("object", meaning, additionalProperties=of)


def maybe(schema: Schema) -> Schema:
    """Return the schema of a value that may be null."""
    return {"anyOf": [schema, {"type": "null"}], "description": f"{schema['description']}; null if there is none"}


def choice(meaning: str, *values: str) -> Schema:
    """Return the schema of one of some texts."""
    return kind("string", meaning, enum=list(values))


def at_least(low: int, meaning: str) -> Schema:
    """Return the schema of a whole number from a limit on."""
    return kind("integer", meaning, minimum=low)


def share(meaning: str) -> Schema:
    """Return the schema of a number between 0 and 1."""
    return kind("number", meaning, minimum=0, maximum=1)


def pair(of: Schema, meaning: str) -> Schema:
    """Return the schema of two values."""
    return kind("array", meaning, items=of, minItems=2, maxItems=2)


def keys(known: Mapping[str, Schema], meaning: str = "", optional: tuple[str, ...] = ()) -> Schema:
    """Return the schema of a mapping with these keys and no others; all are required but the optional ones."""
    required = [name for name in known if name not in optional]
    return kind("object", meaning, properties=dict(known), required=required, additionalProperties=False)


INTERVAL = maybe(pair(number("an end"), "95 % confidence interval"))
RECIPE = {"$ref": "#/$defs/recipe", "description": "all fields of a recipe"}
SCORE = keys({"value": number("the score"), "interval": INTERVAL}, "a score")
MEASURED = keys(
    {
        "value": number("the score"),
        "interval": INTERVAL,
        "higher_is_better": flag("whether higher is better"),
    },
    "a score",
)
EVALUATION = keys(
    {
        "compared_on": text("the data"),
        "samples": at_least(1, "number of samples"),
        "metrics": by_name(MEASURED, "by metric"),
        "float_bytes": at_least(1, "size of the float model"),
        "quantized_bytes": at_least(1, "size of the quantized model"),
        "latency": maybe(
            keys(
                {
                    "float_ms": number("median time of the float model in milliseconds"),
                    "quantized_ms": number("of the quantized model"),
                    "ratio": number("quantized time divided by float time, median over pairs of runs"),
                },
                "times of both models",
            )
        ),
    },
    "the comparison with the float model",
)
LATENCY = keys(
    {
        "float_ms": number("median time of the first model in milliseconds"),
        "quantized_ms": number("of the second"),
        "ratio": number("second time divided by first, median over pairs of runs"),
        "runs": at_least(1, "number of timed pairs"),
        "float_quartiles": pair(number("milliseconds"), "first and third quartile of the first"),
        "quantized_quartiles": pair(number("milliseconds"), "of the second"),
        "ratio_quartiles": pair(number("a ratio"), "of the ratios"),
        "machine": text("the processor"),
    },
    "times of both models",
)
FIRST_AND_LAST = {"first": maybe(number("of the recipe at the start")), "last": maybe(number("of the result"))}
STEP = keys(
    {
        "label": text("what was tried"),
        "decibels": maybe(number("signal-to-noise ratio on held-out samples; null if it failed")),
        "agreement": maybe(share("share of decisions that are those of the float model")),
        "gain": maybe(number("dB gained")),
        "agreement_gain": maybe(number("share of decisions gained")),
        "accepted": flag("whether it was kept"),
        "seconds": number("CPU time"),
        "cause": text("the cause that it fixes, or empty"),
        "reason": text("why it was not kept, or empty"),
    },
    "a recipe that was tried",
)
OUTCOME = keys(
    {
        "calibrated_on": at_least(1, "number of calibration samples"),
        "compared_on": at_least(1, "number of held-out samples"),
        "both_ways": flag("whether both halves were calibrated on and compared on"),
        "kept": texts("the changes that were kept"),
        "final_calibrated_on_all": flag("whether the result is calibrated on all samples"),
        "cpu_seconds": number("CPU time of all trials"),
        "decibels": keys(FIRST_AND_LAST, "signal-to-noise ratio"),
        "agreement": keys(FIRST_AND_LAST, "share of decisions that are those of the float model"),
        "steps": items(STEP, "everything that was tried"),
        "further_gain_needs": texts("what further gain would need"),
    },
    "what was tried and kept",
)
FALL = keys(
    {
        "node": text("name of the node"),
        "operator": text("its type"),
        "tensor": text("its output"),
        "before": number("dB of its worst input"),
        "after": number("dB of its output"),
        "lost": number("dB lost, ignoring what is above 40"),
    },
    "a node that loses accuracy",
)
FINDING = keys(
    {
        "title": text("what was found"),
        "tensors": texts("the tensors, worst first"),
        "fix": text("what helps, in words"),
        "fixes": texts("changes that --fix tries"),
        "gain": maybe(number("dB that the best fix gains on held-out samples")),
        "cost": maybe(number("dB that the cause takes from the outputs")),
        "decisions": number("share of the decisions that it changes"),
    },
    "a cause of lost accuracy",
    optional=("fixes", "gain", "cost", "decisions"),
)
USAGE = keys(
    {"results": count("remembered results"), "blobs": count("stored values"), "bytes_on_disk": count("their size")},
    "what a store holds",
)
PIXELS = keys(
    {
        "label": text("colour order and values"),
        "certainty": number("how certain the outputs are"),
        "first_layer": maybe(number("decimal logarithm of the first layer's results compared with its biases")),
    },
    "a way to read pixels",
)
CALIBRATION: Mapping[str, Schema] = {
    "samples": count("number of calibration samples"),
    "half": maybe(number("share of the ranges that half of them reach")),
    "settled_after": maybe(count("number after which ranges are settled")),
    "growing": texts("tensors whose ranges grow most"),
    "evaluated": count("number of evaluation samples that were compared"),
    "outside": maybe(number("share of their values outside of what was seen in calibration")),
    "exceeded": texts("tensors with most values outside"),
    "similarity": maybe(number("share of the distributions that both have in common")),
    "pixels": maybe(items(PIXELS, "colours and pixel values, as given first")),
    "findings": items(FINDING, "what is wrong with the data"),
}
DIAGNOSIS = keys(
    {
        "decibels": number("signal-to-noise ratio of the outputs"),
        "agreement": maybe(number("share of decisions that are those of the float model")),
        "ties": maybe(number("share of samples with equal highest scores")),
        "findings": items(FINDING, "causes, most expensive first"),
        "rest": maybe(
            keys(
                {
                    "decibels": number("without the causes"),
                    "float_weights": maybe(number("and with weights in float; not of tuned weights")),
                    "float_activations": maybe(number("and with activations in float; not with tuned weights")),
                },
                "dB that the outputs would keep",
            )
        ),
        "calibration": maybe(keys(CALIBRATION, "the check of the calibration data")),
        "falls": items(FALL, "nodes that lose most"),
        "fixed": maybe(OUTCOME),
        "written": texts("files"),
    },
    "one model",
)
PAIR = keys(
    {
        "samples": count("number of samples"),
        "sqnr": number("dB of the outputs"),
        "falls": items(FALL, "nodes that lose most"),
        "tensors": by_name(number("dB"), "every tensor that both models have"),
        "target": maybe(text("the target")),
        "departures": maybe(items(FALL, "nodes where the target departs from the simulation")),
    },
    "two models",
)
TARGET = keys(
    {
        "name": text("its name"),
        "summary": text("what it is"),
        "recommended": texts("recommended presets, best first"),
        "presets": texts("presets that it takes, cheapest first"),
        "rules": items(
            keys(
                {
                    "rule": text("its name"),
                    "text": text("what must hold"),
                    "consequence": text("what happens otherwise"),
                    "source": text("where this is documented"),
                },
                "a rule",
            ),
            "what it asks of a model",
        ),
        "notes": texts("notes for the user"),
        "backend": maybe(
            keys(
                {
                    "name": text("its name"),
                    "product": text("the package"),
                    "version": maybe(text("the installed version")),
                    "install": text("how to install it"),
                    "licence": text("its licence"),
                },
                "what runs models for the target here",
            )
        ),
    },
    "a target",
)
TRIAL = keys(
    {
        "number": at_least(0, "its number"),
        "space": text("name of the space"),
        "assignment": by_name({"type": ["string", "number", "boolean", "null"]}, "values of the parameters"),
        "state": choice("how it ended", "waiting", "running", "complete", "pruned", "failed"),
        "score": maybe(number("its score")),
        "interval": INTERVAL,
        "drop": maybe(number("how much worse than the float model")),
        "accepted": flag("whether it is within tolerance"),
        "objectives": by_name(number("value"), "by objective"),
        "scores": by_name(number("value"), "further scores that an evaluator returned"),
        "error": maybe(text("why it failed")),
        "seconds": number("its duration"),
        "at": maybe(number("seconds since the start of the search")),
        "computed": by_name(number("seconds"), "stages that were computed"),
        "reused": texts("stages that were reused"),
        "samples": maybe(at_least(0, "number of evaluated samples")),
        "same_as": maybe(at_least(0, "number of an earlier trial with the same model")),
        "model": maybe(text("file name of the model, if it was kept")),
        "recipe": RECIPE,
    },
    "a trial",
)
ADVICE = keys(
    {
        "missing": text("how far the best is from the tolerance"),
        "limits": texts("what limits it"),
        "next_step": text("what to try next"),
        "command": text("the command for it"),
    },
    "what to do after a search without a good enough result",
)
SEARCH = keys(
    {
        "version": at_least(1, "version of search.json"),
        "model": text("name of the model"),
        "metric": text("name of the score"),
        "stopped_by": maybe(text("why it ended")),
        "seconds": number("its duration"),
        "direction": choice("of the score", "maximize", "minimize"),
        "objectives": texts("names of the objectives"),
        "tolerance": maybe(number("largest accepted drop")),
        "float": keys(
            {
                "score": number("of the float model"),
                "interval": INTERVAL,
                "scores": by_name(number("value"), "further scores"),
            },
            "the float model",
        ),
        "best": maybe(at_least(0, "number of the best trial")),
        "candidates": items(at_least(0, "a number"), "trials within tolerance"),
        "pareto": items(at_least(0, "a number"), "trials on the Pareto front"),
        "notes": texts("notes for the user"),
        "trials": items(TRIAL, "all trials, by number"),
        "output_dir": text("the folder"),
        "best_model": maybe(text("file of the best model")),
        "best_recipe": maybe(text("file of the best recipe")),
        "report": text("the HTML report"),
        "advice": maybe(ADVICE),
    },
    "a search: the content of search.json, and paths",
    optional=("advice",),
)
SCORED = {"path": text("the model"), "score": number("its score"), "interval": INTERVAL}
DEMO_ROW = keys(
    {name: text("as in the table") for name in ("recipe", "map", "kilobytes", "time_ratio", "made_in")}, "a preset"
)
PRESET = keys(
    {
        "name": text("its name"),
        "summary": text("what it sets"),
        "pending": texts("what is not yet supported"),
        "targets": texts("targets that take it"),
    },
    "a preset",
)
