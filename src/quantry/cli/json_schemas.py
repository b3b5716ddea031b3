"""JSON Schema of what each command prints with ``--json``; `quantry schema COMMAND --output` prints one.

The schemas are derived from the dataclasses that the commands print; a test runs all commands and compares. Version
`JSON_VERSION` rises when a key is removed or changes its meaning.
"""

import json
from dataclasses import dataclass
from typing import Any, get_type_hints

from quantry.auto import AutoFacts
from quantry.cli import cache, recipe
from quantry.cli.check import CheckResult
from quantry.cli.compare import CompareResult, PairResult
from quantry.cli.compat import CompatResult
from quantry.cli.convert import ConvertResult
from quantry.cli.demo import DemoPresets
from quantry.cli.diagnose import CalibrationResult, DiagnosisResult
from quantry.cli.doctor import DoctorResult
from quantry.cli.evaluate import EvaluateResult
from quantry.cli.frame import JSON_VERSION
from quantry.cli.nodes import NodesResult
from quantry.cli.placement import PlacementResult
from quantry.cli.presets import PresetResult, PresetsResult
from quantry.cli.quantize_summary import QuantizeResult
from quantry.cli.report import ReportResult
from quantry.cli.search_result import AdvisedSearch, SearchOutput
from quantry.cli.serve import ServeResult
from quantry.cli.targets import TargetEntry
from quantry.diagnosis import Fall
from quantry.diagnosis.counterfactual import Rest
from quantry.evaluate import Latency
from quantry.memo import StoreUsage
from quantry.plan import NodeOverview
from quantry.recipe.json_result import is_optional
from quantry.recipe.json_schema import DIALECT, Schema, TypeSchemas, recipe_schema
from quantry.targets import Accumulator, PlacedNode, Violation

_RESULTS: dict[str, Any] = {
    "quantize": QuantizeResult,
    "search": AdvisedSearch,
    "evaluate": EvaluateResult,
    "diagnose": DiagnosisResult | PairResult | CalibrationResult,
    "report": ReportResult,
    "serve": ServeResult,
    "demo": SearchOutput | DemoPresets,
    "nodes": NodesResult,
    "convert": ConvertResult,
    "check": CheckResult,
    "compare": CompareResult,
    "placement": PlacementResult,
    "targets": TargetEntry | tuple[TargetEntry, ...],
    "presets": PresetsResult | PresetResult,
    "recipe show": recipe.ShowResult,
    "recipe diff": recipe.DiffResult,
    "recipe validate": recipe.ValidateResult,
    "cache size": cache.SizeResult,
    "cache prune": cache.PruneResult,
    "cache clear": cache.ClearResult,
    "cache verify": cache.VerifyResult,
    "doctor": DoctorResult,
    "compat": CompatResult,
}

# Commands import these when they run, and name them in annotations only.
_IMPORTED_ON_USE = (Accumulator, Fall, Latency, NodeOverview, AutoFacts, PlacedNode, Rest, StoreUsage, Violation)


class _ResultSchemas(TypeSchemas):
    """Writes the schemas of results as `plain` writes them."""

    def schema(self, annotation: Any) -> Schema:
        """Return the schema of a type's values; infinities and NaN are texts, because JSON has no such numbers."""
        if annotation is float:
            return {"anyOf": [{"type": "number"}, {"enum": ["inf", "-inf", "nan"]}]}
        return super().schema(annotation)

    def hints(self, cls: Any) -> dict[str, Any]:
        """Return the types of a dataclass's fields."""
        return get_type_hints(cls, localns={kind.__name__: kind for kind in _IMPORTED_ON_USE}, include_extras=True)

    def is_required(self, field: Any) -> bool:
        """Whether the key of a field is always there."""
        return not is_optional(field)


RESULTS: dict[str, Schema] = {
    **{command: _ResultSchemas().schema(result) for command, result in _RESULTS.items()},
    "schema": {
        "type": "object",
        "description": "A JSON Schema.",
        "required": ["$schema", "title", "type", "properties"],
    },
}
"""By command: the schema of ``result``."""


@dataclass(frozen=True)
class _Failure:
    """Why a command failed.

    Attributes:
        type: Class of the error.
        message: What happened.
    """

    type: str
    message: str


def output_schema(command: str) -> Schema:
    """Return the JSON Schema of all that a command prints with ``--json``.

    Args:
        command: The command, such as ``quantize`` or ``recipe show``.
    """
    recipe_fields = recipe_schema()
    definitions = recipe_fields.pop("$defs", {})
    plain_recipe = {name: value for name, value in recipe_fields.items() if not name.startswith("$")}
    uses_recipe = "#/$defs/recipe" in json.dumps(RESULTS[command])
    return {
        "$schema": DIALECT,
        **({"$defs": {**definitions, "recipe": plain_recipe}} if uses_recipe else {}),
        "title": f"quantry {command} --json, version {JSON_VERSION}",
        "type": "object",
        "properties": {
            "schema": {"const": f"quantry/{command}"},
            "version": {"const": JSON_VERSION},
            "quantry": {"type": "string", "description": "Version of quantry."},
            "exit_code": {"type": "integer", "description": "Exit code of the process."},
            "warnings": {"type": "array", "items": {"type": "string"}, "description": "As on standard error."},
            "result": RESULTS[command],
            "error": _ResultSchemas().schema(_Failure),
        },
        "required": ["schema", "version", "quantry", "exit_code", "warnings"],
        "oneOf": [{"required": ["result"]}, {"required": ["error"]}],
    }
