"""JSON Schema of what each command prints with ``--json``; `quantry schema COMMAND` prints one.

Every key that a command returns is here, with its type and meaning; a test runs all commands and compares. Version
`JSON_VERSION` rises when a key is removed or changes its meaning.
"""

from collections.abc import Mapping
from typing import Any

from quantry.cli.frame import JSON_VERSION

Schema = dict[str, Any]
_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def _kind(name: str, meaning: str, **more: Any) -> Schema:
    return {"type": name, "description": meaning, **more}


def _text(meaning: str) -> Schema:
    return _kind("string", meaning)


def _count(meaning: str) -> Schema:
    return _kind("integer", meaning)


def _flag(meaning: str) -> Schema:
    return _kind("boolean", meaning)


def _number(meaning: str) -> Schema:
    # JSON has no infinities: they are texts.
    return {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}], "description": meaning}


def _list(of: Schema, meaning: str) -> Schema:
    return _kind("array", meaning, items=of)


def _texts(meaning: str) -> Schema:
    return _list({"type": "string"}, meaning)


def _by_name(of: Schema, meaning: str) -> Schema:
    return _kind("object", meaning, additionalProperties=of)


def _maybe(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}], "description": f"{schema['description']}; null if there is none"}


def _keys(keys: Mapping[str, Schema], meaning: str = "", optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in keys if name not in optional]
    return _kind("object", meaning, properties=dict(keys), required=required, additionalProperties=False)


_INTERVAL = _list(_number("an end"), "95 % confidence interval")
_OBJECT = {"type": "object"}
_FALL = _keys(
    {
        "node": _text("name of the node"),
        "operator": _text("its type"),
        "tensor": _text("its output"),
        "before": _number("dB of its worst input"),
        "after": _number("dB of its output"),
        "lost": _number("dB lost, ignoring what is above 40"),
    },
    "a node that loses accuracy",
)
_FINDING = _keys(
    {
        "title": _text("what was found"),
        "tensors": _texts("the tensors, worst first"),
        "fix": _text("what helps, in words"),
        "fixes": _texts("changes that --fix tries"),
        "gain": _maybe(_number("dB that the best fix gains on held-out samples")),
        "cost": _maybe(_number("dB that the cause takes from the outputs")),
        "decisions": _number("share of the decisions that it changes"),
    },
    "a cause of lost accuracy",
    optional=("fixes", "gain", "cost", "decisions"),
)
_USAGE = _keys(
    {"results": _count("remembered results"), "blobs": _count("stored values"), "bytes_on_disk": _count("their size")},
    "what a store holds",
)
_CALIBRATION: Mapping[str, Schema] = {
    "samples": _count("number of calibration samples"),
    "half": _maybe(_number("share of the ranges that half of them reach")),
    "settled_after": _maybe(_count("number after which ranges are settled")),
    "growing": _texts("tensors whose ranges grow most"),
    "evaluated": _count("number of evaluation samples that were compared"),
    "outside": _maybe(_number("share of their values outside of what was seen in calibration")),
    "exceeded": _texts("tensors with most values outside"),
    "similarity": _maybe(_number("share of the distributions that both have in common")),
    "pixels": _maybe(_list(_OBJECT, "colours and pixel values: label, certainty and first_layer")),
    "findings": _list(_FINDING, "what is wrong with the data"),
}
_DIAGNOSIS = _keys(
    {
        "decibels": _number("signal-to-noise ratio of the outputs"),
        "agreement": _maybe(_number("share of decisions that are those of the float model")),
        "ties": _maybe(_number("share of samples with equal highest scores")),
        "findings": _list(_FINDING, "causes, most expensive first"),
        "calibration": _maybe(_keys(_CALIBRATION, "the check of the calibration data")),
        "falls": _list(_FALL, "nodes that lose most"),
        "fixed": _maybe(_kind("object", "what --fix tried and kept")),
        "written": _texts("files"),
    },
    "one model",
)
_PAIR = _keys(
    {
        "samples": _count("number of samples"),
        "sqnr": _number("dB of the outputs"),
        "falls": _list(_FALL, "nodes that lose most"),
        "tensors": _by_name(_number("dB"), "every tensor that both models have"),
        "target": _maybe(_text("the target")),
        "departures": _maybe(_list(_FALL, "nodes where the target departs from the simulation")),
    },
    "two models",
)
_TARGET = _kind("object", "a target: name, title, recommended, presets, rules and others", required=["name"])
_SEARCH = _kind(
    "object",
    "the content of search.json, and paths: output_dir, best_model, best_recipe, report",
    required=["version", "trials", "output_dir", "best_model", "best_recipe", "report"],
    properties={"trials": _list(_OBJECT, "all trials, by number")},
)

RESULTS: Mapping[str, Schema] = {
    "quantize": _keys(
        {
            "model": _text("the float model"),
            "recipe": _text("name of the recipe"),
            "written": _texts("files"),
            "useless": _maybe(_text("why the result is useless")),
            "nodes": _by_name(_count("number"), "how many are quantized and float"),
            "tensors": _by_name(_count("number"), "how many activations, weights and biases are quantized"),
            "float_because": _list(_OBJECT, "reasons with their counts"),
            "evaluation": _maybe(_kind("object", "the comparison with the float model")),
            "notes": _texts("notes for the user"),
            "auto": _maybe(_kind("object", "what the recipe auto tried")),
            "stages": _list(_OBJECT, "stages with outcome and seconds"),
        }
    ),
    "search": _SEARCH,
    "evaluate": _keys(
        {
            "metric": _text("name of the metric"),
            "model": _kind("object", "path, score and interval"),
            "float": _kind("object", "the same for the float model"),
            "simulation": _kind("object", "the same for the simulation, with a target"),
            "target_minus_simulation": _maybe(_kind("object", "value and interval")),
            "drop": _maybe(_number("how much worse than the float model")),
            "max_drop": _maybe(_number("the limit that was given")),
        },
        optional=("float", "simulation"),
    ),
    "diagnose": {"anyOf": [_DIAGNOSIS, _PAIR, _keys(_CALIBRATION, "with --calibration")], "description": ""},
    "report": _keys({"report": _text("the page"), "searches": _texts("the folders")}),
    "serve": _keys({"address": _text("where the page is")}),
    "demo": {"anyOf": [_SEARCH, _keys({"presets": _list(_OBJECT, "rows")}, "with --presets")], "description": ""},
    "nodes": _keys(
        {"model": _text("the model"), "recipe": _text("name of the recipe"), "nodes": _list(_OBJECT, "one per node")}
    ),
    "convert": _keys(
        {
            "model": _text("the model"),
            "to": _text("the format"),
            "written": _texts("files"),
            "nodes_by_domain": _by_name(_count("nodes"), "number of nodes of each domain"),
        }
    ),
    "check": _keys(
        {
            "model": _text("the model"),
            "target": _text("the target"),
            "violations": _list(_OBJECT, "broken rules: node, rule, values and what to change"),
            "accumulators": _list(_OBJECT, "proofs that accumulators do not overflow"),
        }
    ),
    "compare": _keys(
        {
            "samples": _count("number of samples"),
            "metrics": _by_name(_OBJECT, "value and interval by metric"),
            "outputs": _by_name(_OBJECT, "the same by output"),
            "sizes": _list(_count("bytes"), "size of both files"),
            "target": _maybe(_text("the target")),
            "latency": _maybe(_kind("object", "times of both")),
            "slow_because": _maybe(_text("why the second is not faster")),
        }
    ),
    "placement": _keys(
        {
            "model": _text("the model"),
            "target": _text("the target"),
            "summary": _text("one line"),
            "nodes": _list(_OBJECT, "node, operator, kernel, unit, precision, device, milliseconds and why"),
        }
    ),
    "targets": {"anyOf": [_TARGET, _list(_TARGET, "all targets")], "description": ""},
    "presets": _keys(
        {
            "presets": _list(_OBJECT, "name, summary and targets"),
            "recipe": _kind("object", "the recipe of the one named"),
        },
        optional=("recipe",),
    ),
    "recipe show": _keys({"recipe": _kind("object", "all fields")}),
    "recipe diff": _keys(
        {
            "first": _text("name of the first"),
            "second": _text("name of the second"),
            "differences": _list(_OBJECT, "field with both values"),
        }
    ),
    "recipe validate": _keys({"files": _list(_OBJECT, "file, valid and error")}),
    "schema": _kind("object", "a JSON Schema"),
    "cache size": _keys({"store": _text("the folder"), "usage": _USAGE}),
    "cache prune": _keys({"store": _text("the folder"), "before": _USAGE, "after": _USAGE}),
    "cache clear": _keys({"store": _text("the folder"), "deleted": _USAGE}),
    "cache verify": _keys(
        {"store": _text("the folder"), "checked": _count("values read"), "damaged": _texts("values deleted")}
    ),
    "doctor": _keys({"findings": _list(_OBJECT, "what, state and detail")}),
    "compat": _keys(
        {"script": _text("the script"), "missing": _texts("what quantry lacks"), "ran": _flag("whether it ran")}
    ),
}
"""By command: the schema of ``result``."""


def output_schema(command: str) -> Schema:
    """Return the JSON Schema of all that a command prints with ``--json``.

    Args:
        command: The command, such as ``quantize`` or ``recipe show``.
    """
    return {
        "$schema": _DIALECT,
        "title": f"quantry {command} --json, version {JSON_VERSION}",
        "type": "object",
        "properties": {
            "schema": {"const": f"quantry/{command}"},
            "version": {"const": JSON_VERSION},
            "quantry": _text("version of quantry"),
            "exit_code": _count("exit code of the process"),
            "warnings": _texts("warnings, as on standard error"),
            "result": RESULTS[command],
            "error": _keys({"type": _text("class of the error"), "message": _text("what happened")}),
        },
        "required": ["schema", "version", "quantry", "exit_code", "warnings"],
        "oneOf": [{"required": ["result"]}, {"required": ["error"]}],
    }
