"""``quantry convert``: translate a quantized model to another dialect."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from quantry.cli.console import check_output
from quantry.cli.frame import current_output
from quantry.errors import require_choice
from quantry.recipe.json_result import Count, JsonResult

_TO = (
    "qdq, vai, vitis, quark or contrib; standard replaces vendor operators by standard ones; ort-cpu uses "
    "onnxruntime's integer kernels where they give the same bits."
)


@dataclass(frozen=True)
class ConvertResult(JsonResult):
    """A translated model.

    Attributes:
        model: The model.
        to: The format.
        written: The files.
        nodes_by_domain: Number of nodes of each domain.
    """

    model: Path
    to: str
    written: tuple[Path, ...]
    nodes_by_domain: Mapping[str, Count]


def convert(
    model: Annotated[Path, typer.Argument(help="Quantized ONNX model.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Output file.")],
    to: Annotated[str, typer.Option("--to", help=_TO)],
) -> None:
    """Translate a quantized model between dialects, or to standard operators, without changing its outputs."""
    from quantry.convert import QdqDialect, translate
    from quantry.graph.load import read_model
    from quantry.graph.save import write_model

    require_choice("--to", to, (target.value for target in QdqDialect))
    check_output(output)
    translated = translate(read_model(model), QdqDialect(to))
    written = write_model(translated, output)
    out = current_output()
    domains = Counter(node.domain or "ai.onnx" for node in translated.graph)
    out.console.print(", ".join(f"{count} nodes of {escape(domain)}" for domain, count in sorted(domains.items())))
    for path in written:
        out.answer.print(f"wrote [bold]{escape(str(path))}[/]", soft_wrap=True)
    out.result(ConvertResult(model, to, written, domains))
