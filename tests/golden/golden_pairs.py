"""Everything that reads the Q/DQ pairs of a model, for each dialect and type, and the digest of what it returns.

The files are written by the emitters, which `golden_stages` pins; here the readers are pinned: conversions, tools,
rules of targets, the arithmetic of HTP, and what is kept of a partly quantized model.
"""

import io
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx_ir as ir
from golden_models import MODELS, samples

from quantry import quantize
from quantry.convert import QdqDialect, translate
from quantry.emit.saturated_bounds import remove_saturated_bounds
from quantry.errors import QuantryError
from quantry.graph.save import serialize
from quantry.memo import fingerprint
from quantry.onnx.model_tools import TOOLS
from quantry.ort.stored_parameters import unquantized
from quantry.recipe import PRESETS, FixNeuron, MinMax, QOperator, Recipe, VitisDialect, VitisQdq
from quantry.targets import find_target
from quantry.targets.backends.htp_arithmetic import write_htp_arithmetic
from quantry.targets.registry import TARGETS
from quantry.targets.rules.accumulator import prove_accumulators
from quantry.targets.rules.rule import CheckedModel

GOLDEN = Path(__file__).with_name("pairs.txt")
READ_MODELS = ("conv", "movement")
READ_PRESETS = ("XINT8", "CPU_INT8", "A16W8", "U16S8_AAWS", "FP8_E4M3", "BF16")
FORMATS = {
    "vai": VitisQdq(VitisDialect.VAI),
    "quark": VitisQdq(VitisDialect.QUARK),
    "contrib": VitisQdq(VitisDialect.CONTRIB),
    "fix_neuron": FixNeuron(),
    "qoperator": QOperator(),
}
READ_TOOLS = (
    "convert_a8w8_npu_to_a8w8_cpu",
    "convert_bias_int32_to_int16",
    "convert_customqdq_to_qdq",
    "convert_resize_fs_to_pof2s",
    "convert_s8s8_to_u8s8",
    "convert_u16s8_to_s16s8",
    "convert_u16u8_to_u8u8",
    "convert_quant_to_float",
    "insert_clip_bfloat16_qdq",
    "print_a16w8_a8w8_nodes",
    "remove_qdq",
    "remove_qdq_mul_add",
    "replace_bfloat16_qdq_cast",
)


def current() -> Iterator[tuple[str, str]]:
    """Yield the name of each reading and the digest of its result, or the class of the error that it raises."""
    for name in READ_MODELS:
        for label, recipe in _recipes():
            model = _written(name, recipe)
            for reader, read in _readers():
                yield f"{name}-{label} {reader}", _digest(read, ir.from_proto(ir.to_proto(model)))


def write_pairs() -> None:
    """Write all digests."""
    GOLDEN.write_text("".join(f"{name} {digest}\n" for name, digest in current()), encoding="utf-8")


def read_pairs() -> dict[str, str]:
    """Return the digests that were reviewed."""
    return dict(line.rsplit(" ", 1) for line in GOLDEN.read_text(encoding="utf-8").splitlines())


def _recipes() -> Iterator[tuple[str, Recipe]]:
    for preset in READ_PRESETS:
        yield preset, PRESETS[preset].recipe
    base = PRESETS["XINT8"].recipe
    for label, written in FORMATS.items():
        yield label, replace(base, emit=replace(base.emit, format=written))


def _written(name: str, recipe: Recipe) -> ir.Model:
    proto = MODELS[name]()
    # The search for a scale of the smallest error adds numbers in an order that depends on the processor.
    scale = replace(recipe.scale, activation=MinMax(), weight=MinMax())
    return quantize(proto, samples(proto), replace(recipe, scale=scale), store=None).model


def _readers() -> Iterator[tuple[str, Callable[[ir.Model], Any]]]:
    for dialect in QdqDialect:
        yield f"convert:{dialect.value}", lambda model, dialect=dialect: translate(model, dialect)
    for tool in READ_TOOLS:
        yield f"tool:{tool}", TOOLS[tool].function
    for target in TARGETS:
        yield f"check:{target}", lambda model, target=target: _violations(model, target)
    yield "accumulators", lambda model: tuple(map(str, prove_accumulators(CheckedModel(model))))
    yield "htp", _with_htp
    yield "bounds", lambda model: str(remove_saturated_bounds(model)) + str(fingerprint(serialize(model)))
    yield "stored", _stored


def _violations(model: ir.Model, target: str) -> tuple[str, ...]:
    read = CheckedModel(model)
    return tuple(str(violation) for rule in find_target(target).rules for violation in rule.violations(read))


def _with_htp(model: ir.Model) -> ir.Model:
    write_htp_arithmetic(model)
    return model


def _stored(model: ir.Model) -> tuple[Any, ...]:
    found = unquantized(ir.to_proto(model))
    return found.model.SerializeToString(deterministic=True), repr(found.weights), repr(found.ranges)


def _digest(read: Callable[[ir.Model], Any], model: ir.Model) -> str:
    try:
        with redirect_stdout(io.StringIO()) as printed:
            result = read(model)
    except QuantryError as error:
        return f"{type(error).__name__}:{str(fingerprint(str(error)))[:16]}"
    if isinstance(result, ir.Model):
        result = serialize(result)
    return str(fingerprint((repr(result) if isinstance(result, dict) else result, printed.getvalue())))[:16]
