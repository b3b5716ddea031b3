"""Calls torch's ONNX exporter, with our own translation of what it translates poorly, and explains its failures."""

import copy
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import onnx_ir as ir
import torch
from torch import fx
from torch.export import ExportedProgram

from quantry.errors import MissingExtraError, ModelError
from quantry.torchfront.lowering.scopes import captured_name, scope_of
from quantry.torchfront.quant_stubs import STUBS

_NODE = re.compile(r"Error when translating node %(\w+)")
_MOST_RETRIES = 8


def translate(program: ExportedProgram, advice: str = "") -> tuple[ir.Model, ExportedProgram]:
    """Return the ONNX model of a program as torch's exporter writes it, and the decomposed program it comes from.

    If the translation of an operator fails, the operator is decomposed further, and translated in parts.

    Args:
        program: The exported program; it is not changed.
        advice: What to do about an operator that cannot be translated; by default, which submodules to capture instead.

    Raises:
        ModelError: An operator can neither be translated nor decomposed.
    """
    core, registry = _exporter(), _registry()
    for _ in range(_MOST_RETRIES):
        decomposed = program
        try:
            with _quiet():
                decomposed = core._prepare_exported_program_for_export(program, registry=registry)
                _drop_constant_results(decomposed)
                return core._exported_program_to_onnx_program(decomposed, registry=registry).model, decomposed
        except Exception as error:
            match = _NODE.search(_whole_text(error))
            matching = (entry for entry in decomposed.graph.nodes if match is not None and entry.name == match[1])
            node = next(matching, None)
            name = node.target.name() if node is not None and hasattr(node.target, "name") else ""
            if name not in registry.functions:
                raise _failure(error, node, program, advice) from error
            registry = copy.copy(registry)
            registry.functions = {key: value for key, value in registry.functions.items() if key != name}
    raise ModelError(f"torch's ONNX exporter must translate the model, got failures in {_MOST_RETRIES} operators")


def _drop_constant_results(program: ExportedProgram) -> None:
    """Remove numbers and None from the results, which the exporter does not expect there."""
    for node in program.graph.nodes:
        if node.op == "output":
            node.args = (tuple(leaf for leaf in node.args[0] if isinstance(leaf, fx.Node)),)


def _exporter() -> Any:
    try:
        # Not `torch.onnx.export`: that builds the table of all operators at every call, which takes longer than
        # translating a model of a hundred layers, and its table cannot lose an operator.
        from torch.onnx._internal.exporter import _core
    except ImportError as error:
        raise MissingExtraError(
            "the torch path translates models with onnxscript, which is not installed; pip install quantry[torch]"
        ) from error
    return _core


# Saves building the table of all operators for every model, which takes most of a second.
@cache
def _registry() -> Any:
    from torch.onnx._internal.exporter import _registration

    with _quiet():
        registry = _registration.ONNXRegistry.from_torchlib()
        from quantry.torchfront.lowering.attention import attention, identity

    registry.register_op(torch.ops.aten.scaled_dot_product_attention.default, attention)
    for stub in STUBS:
        registry.register_op(stub, identity)
    return registry


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress torch's messages about optional packages, deprecated internals and skipped results."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)


def _whole_text(error: BaseException | None) -> str:
    messages = []
    while error is not None:
        messages.append(str(error))
        error = error.__cause__
    return "\n".join(messages)


def _failure(error: Exception, node: fx.Node | None, program: ExportedProgram, advice: str) -> ModelError:
    if node is None:
        reason = next(
            (line for line in reversed(_whole_text(error).splitlines()) if line.strip()), type(error).__name__
        )
        return ModelError(
            f"torch's ONNX exporter must be able to translate the model, got a failure: {reason.strip()}; "
            f"{advice or 'capture submodules, quantize them, and export each by itself'}"
        )
    source = captured_name(node)
    captured = next((entry for entry in program.graph.nodes if entry.name == source), node)
    nodes = [entry for entry in program.graph.nodes if entry.target == captured.target]
    path = scope_of(captured).path
    location = f"in {path!r}" if path else "in the root module"
    return ModelError(
        f"every operator must be one that torch can export as ONNX, got {captured.target} {location}; "
        f"{advice or _parts_without(nodes, program)}"
    )


def _parts_without(unknown: list[fx.Node], program: ExportedProgram) -> str:
    """Return advice to capture the largest submodule without the unknown operators."""
    wrong = {path for node in unknown for path in scope_of(node).paths}
    sizes: dict[str, int] = {}
    for node in program.graph.nodes:
        outer = next((path for path in scope_of(node).paths if path not in wrong), None)
        if outer is not None and node.op == "call_function":
            sizes[outer] = sizes.get(outer, 0) + 1
    if not sizes:
        return "excluding the node does not help; put the layers into a submodule without it, and capture that one"
    largest = max(sizes, key=lambda path: sizes[path])
    code = "model" + "".join(f"[{name}]" if name.isdigit() else f".{name}" for name in largest.split("."))
    return (
        f"excluding the node does not help; capture submodules without it, as in {code} = capture({code}, its_input), "
        "quantize them, and export each by itself"
    )
