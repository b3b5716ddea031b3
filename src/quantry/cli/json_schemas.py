"""JSON Schema of what each command prints with ``--json``; `quantry schema COMMAND` prints one.

Every key that a command returns is here, with its type and meaning; a test runs all commands and compares. Version
`JSON_VERSION` rises when a key is removed or changes its meaning.
"""

import json
from collections.abc import Mapping

from quantry.cli.frame import JSON_VERSION
from quantry.cli.json_parts import (
    CALIBRATION,
    DEMO_ROW,
    DIAGNOSIS,
    EVALUATION,
    LATENCY,
    OUTCOME,
    PAIR,
    PRESET,
    RECIPE,
    SCORE,
    SCORED,
    SEARCH,
    TARGET,
    USAGE,
    Schema,
    at_least,
    by_name,
    choice,
    count,
    flag,
    items,
    keys,
    kind,
    maybe,
    number,
    pair,
    text,
    texts,
)
from quantry.recipe.json_schema import DIALECT, recipe_schema

RESULTS: Mapping[str, Schema] = {
    "quantize": keys(
        {
            "model": text("the float model"),
            "recipe": text("name of the recipe"),
            "written": texts("files"),
            "useless": maybe(text("why the result is useless")),
            "nodes": keys(
                {"quantized": at_least(0, "number that compute on quantized tensors"), "float": at_least(0, "others")},
                "nodes of the model",
            ),
            "tensors": keys(
                {name: at_least(0, f"number of quantized {name}") for name in ("activations", "weights", "biases")},
                "tensors of the model",
            ),
            "float_because": items(
                keys({"reason": text("why"), "count": at_least(1, "number of nodes")}, "a reason"),
                "why nodes stayed float, most frequent first",
            ),
            "evaluation": maybe(EVALUATION),
            "notes": texts("notes for the user"),
            "auto": maybe(OUTCOME),
            "stages": items(
                keys(
                    {
                        "stage": text("its name"),
                        "outcome": choice("what happened", "computed", "reused"),
                        "seconds": number("its duration"),
                    },
                    "a stage",
                ),
                "what ran",
            ),
        }
    ),
    "search": SEARCH,
    "evaluate": keys(
        {
            "metric": text("name of the metric"),
            "model": keys(SCORED, "the model"),
            "float": keys(SCORED, "the float model"),
            "simulation": keys(SCORED, "the simulation, with a target"),
            "target_minus_simulation": maybe(SCORE),
            "drop": maybe(number("how much worse than the float model")),
            "max_drop": maybe(number("the limit that was given")),
        },
        optional=("float", "simulation"),
    ),
    "diagnose": {"anyOf": [DIAGNOSIS, PAIR, keys(CALIBRATION, "with --calibration")], "description": ""},
    "report": keys({"report": text("the page"), "searches": texts("the folders")}),
    "serve": keys({"address": text("where the page is")}),
    "demo": {"anyOf": [SEARCH, keys({"presets": items(DEMO_ROW, "rows")}, "with --presets")], "description": ""},
    "nodes": keys(
        {
            "model": text("the model"),
            "recipe": text("name of the recipe"),
            "nodes": items(
                keys(
                    {
                        "node": text("its name"),
                        "operator": text("its type"),
                        "outputs": texts("its outputs"),
                        "reads": texts("types of the activations that it reads"),
                        "constants": texts("types of its constants"),
                        "writes": texts("types of its outputs"),
                        "reason": text("why it stays float, or empty"),
                    },
                    "a node",
                ),
                "one per node",
            ),
        }
    ),
    "convert": keys(
        {
            "model": text("the model"),
            "to": text("the format"),
            "written": texts("files"),
            "nodes_by_domain": by_name(count("nodes"), "number of nodes of each domain"),
        }
    ),
    "check": keys(
        {
            "model": text("the model"),
            "target": text("the target"),
            "violations": items(
                keys(
                    {
                        "node": text("where"),
                        "rule": text("name of the rule"),
                        "values": text("what was found"),
                        "change": text("what to change"),
                        "consequence": text("what happens otherwise"),
                        "source": text("where the rule is documented"),
                    },
                    "a broken rule",
                ),
                "broken rules",
            ),
            "accumulators": items(
                keys(
                    {
                        "node": text("the layer"),
                        "operator": text("its type"),
                        "low": count("smallest possible sum"),
                        "high": count("largest possible sum"),
                        "operand_bits": at_least(1, "bits of the operands"),
                        "ties": number("share of the sums that lie between two results"),
                    },
                    "the bounds of a layer's sums",
                ),
                "proofs that accumulators do not overflow",
            ),
        }
    ),
    "compare": keys(
        {
            "samples": count("number of samples"),
            "metrics": by_name(SCORE, "of all outputs, by metric"),
            "outputs": by_name(by_name(SCORE, "by metric"), "the same by output"),
            "sizes": pair(at_least(1, "bytes"), "size of both files"),
            "target": maybe(text("the target")),
            "latency": maybe(LATENCY),
            "slow_because": maybe(text("why the second is not faster")),
        }
    ),
    "placement": keys(
        {
            "model": text("the model"),
            "target": text("the target"),
            "summary": text("one line"),
            "nodes": items(
                keys(
                    {
                        "node": text("its name"),
                        "operator": text("its type"),
                        "kernel": text("what computes it"),
                        "unit": text("the node that it is fused into"),
                        "precision": text("the type it computes in"),
                        "device": text("where it runs"),
                        "milliseconds": maybe(number("its time")),
                        "why": text("why not with integers, or empty"),
                    },
                    "a node",
                ),
                "one per node",
            ),
        }
    ),
    "targets": {"anyOf": [TARGET, items(TARGET, "all targets")], "description": ""},
    "presets": keys(
        {
            "presets": items(PRESET, "recommended ones first"),
            "recipe": RECIPE,
        },
        optional=("recipe",),
    ),
    "recipe show": keys({"recipe": RECIPE}),
    "recipe diff": keys(
        {
            "first": text("name of the first"),
            "second": text("name of the second"),
            "differences": items(
                keys({"path": text("the field"), "first": text("its value"), "second": text("the other")}, "a field"),
                "fields that differ",
            ),
        }
    ),
    "recipe validate": keys(
        {
            "files": items(
                keys(
                    {
                        "file": text("the file"),
                        "valid": flag("whether it can be used"),
                        "error": maybe(text("what is wrong")),
                    },
                    "a file",
                ),
                "in the order given",
            )
        }
    ),
    "schema": kind("object", "a JSON Schema", required=["$schema", "title", "type", "properties"]),
    "cache size": keys({"store": text("the folder"), "usage": USAGE}),
    "cache prune": keys({"store": text("the folder"), "before": USAGE, "after": USAGE}),
    "cache clear": keys({"store": text("the folder"), "deleted": USAGE}),
    "cache verify": keys(
        {"store": text("the folder"), "checked": count("values read"), "damaged": texts("values deleted")}
    ),
    "doctor": keys(
        {
            "findings": items(
                keys(
                    {
                        "what": text("the part"),
                        "state": choice("missing parts are optional", "good", "missing", "broken"),
                        "detail": text("version, or what to do"),
                    },
                    "a part of the installation",
                ),
                "all parts",
            )
        }
    ),
    "compat": keys(
        {"script": text("the script"), "missing": texts("what quantry lacks"), "ran": flag("whether it ran")}
    ),
}
"""By command: the schema of ``result``."""


def output_schema(command: str) -> Schema:
    """Return the JSON Schema of all that a command prints with ``--json``.

    Args:
        command: The command, such as ``quantize`` or ``recipe show``.
    """
    whole = recipe_schema()
    definitions = whole.pop("$defs", {})
    recipe = {name: value for name, value in whole.items() if not name.startswith("$")}
    uses_recipe = "#/$defs/recipe" in json.dumps(RESULTS[command])
    return {
        "$schema": DIALECT,
        **({"$defs": {**definitions, "recipe": recipe}} if uses_recipe else {}),
        "title": f"quantry {command} --json, version {JSON_VERSION}",
        "type": "object",
        "properties": {
            "schema": {"const": f"quantry/{command}"},
            "version": {"const": JSON_VERSION},
            "quantry": text("version of quantry"),
            "exit_code": count("exit code of the process"),
            "warnings": texts("warnings, as on standard error"),
            "result": RESULTS[command],
            "error": keys({"type": text("class of the error"), "message": text("what happened")}),
        },
        "required": ["schema", "version", "quantry", "exit_code", "warnings"],
        "oneOf": [{"required": ["result"]}, {"required": ["error"]}],
    }
