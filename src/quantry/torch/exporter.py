"""``ModelExporter``: writes ONNX."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantry.errors import RecipeError, known_keywords
from quantry.recipe import Format
from quantry.recipe.checked import Checked, KnownArguments

if TYPE_CHECKING:
    from quantry.torchfront import Exported

FILE_NAME = "quark_model.onnx"


@dataclass(frozen=True)
class JsonExporterConfig(KnownArguments):
    """How weights of language models are packed; of no consequence for ONNX, so only its defaults are taken.

    Attributes:
        weight_merge_groups: Only None.
        kv_cache_group: Only empty.
        min_kv_scale: Only 0.
        weight_format: Only "real_quantized".
        pack_method: Only "reorder".
    """

    weight_merge_groups: Sequence[Sequence[str]] | None = None
    kv_cache_group: Sequence[str] = field(default_factory=tuple)
    min_kv_scale: float = 0.0
    weight_format: str = "real_quantized"
    pack_method: str = "reorder"

    def __post_init__(self) -> None:
        given = (self.weight_merge_groups, tuple(self.kv_cache_group), self.min_kv_scale)
        if given != (None, (), 0.0) or (self.weight_format, self.pack_method) != ("real_quantized", "reorder"):
            raise RecipeError(f"JsonExporterConfig must be left at its defaults for export to ONNX, got {self}")


@dataclass(frozen=True)
class OnnxExporterConfig(Checked):
    """How ONNX is written.

    Attributes:
        file_name: Name of the file in the export directory.
        format: The dialect, such as ``quantry.recipe.VitisQdq()``; None writes standard QDQ.
        dynamic_batch: Leave the first axis free; False writes the example's sizes.
    """

    file_name: str = FILE_NAME
    format: Format | None = None
    dynamic_batch: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.file_name.endswith(".onnx") or Path(self.file_name).name != self.file_name:
            raise RecipeError(
                f"OnnxExporterConfig.file_name must be a plain name ending in .onnx, got {self.file_name!r}"
            )


@dataclass(frozen=True)
class ExporterConfig(KnownArguments):
    """What an exporter is made with.

    Attributes:
        json_export_config: Accepted at its defaults.
        onnx_export_config: How ONNX is written; None for the defaults.
    """

    json_export_config: JsonExporterConfig = JsonExporterConfig()
    onnx_export_config: OnnxExporterConfig | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.json_export_config, JsonExporterConfig):
            raise RecipeError(
                f"ExporterConfig.json_export_config must be a JsonExporterConfig, got {self.json_export_config!r}"
            )
        if self.onnx_export_config is not None and not isinstance(self.onnx_export_config, OnnxExporterConfig):
            raise RecipeError(
                f"ExporterConfig.onnx_export_config must be an OnnxExporterConfig, got {self.onnx_export_config!r}"
            )


class ModelExporter:
    """Writes models to a directory.

    Attributes:
        config: How.
        export_dir: Where to.
    """

    @known_keywords("ModelExporter", {"output_dir": "export_dir"})
    def __init__(self, config: ExporterConfig, export_dir: str | Path) -> None:
        if not isinstance(config, ExporterConfig):
            raise RecipeError(f"ModelExporter.config must be an ExporterConfig, got {type(config).__name__}")
        if not isinstance(export_dir, str | os.PathLike):
            raise RecipeError(f"ModelExporter.export_dir must be a path, got {type(export_dir).__name__}")
        self.config = config
        self.export_dir = Path(export_dir)

    def export_onnx_model(self, model: Any, input_args: Any, **arguments: Any) -> "Exported":
        """Write a model as quantized ONNX, and compare it with the torch one on the example.

        Args:
            model: A quantized module, or a model with one inside.
            input_args: Example arguments: a tensor or a tuple.
            arguments: ``input_names``, ``output_names`` and the other arguments of `export_onnx`.

        Returns:
            What was written and how it compares; the peer returns nothing.
        """
        onnx_config = self.config.onnx_export_config or OnnxExporterConfig()
        return export_onnx(model, self.export_dir, input_args, onnx_config=onnx_config, **arguments)


@known_keywords("export_onnx", {"export_dir": "output_dir", "example": "input_args", "opset": "opset_version"})
def export_onnx(  # noqa: PLR0913, PLR0917 - the documented signature
    model: Any,
    output_dir: str | Path,
    input_args: Any,
    opset_version: int | None = None,
    input_names: Sequence[str] = (),
    output_names: Sequence[str] = (),
    verbose: bool = False,
    do_constant_folding: bool = True,
    operator_export_type: Any = None,
    uint4_int4_flag: bool = False,
    dynamo: bool = False,
    *,
    onnx_config: OnnxExporterConfig | None = None,
) -> "Exported":
    """Write a model as quantized ONNX, and compare it with the torch one on the example.

    Args:
        model: A quantized module, or a model with one inside.
        output_dir: The directory, made where it is missing; or the file, by a name that ends in ``.onnx``.
        input_args: Example arguments: a tensor or a tuple.
        opset_version: Smallest operator set of the file; None takes what the types need.
        input_names: Names of the inputs.
        output_names: Names of the outputs.
        verbose: Only False; use Python's logging.
        do_constant_folding: Only True.
        operator_export_type: Only None or torch's ``ONNX``.
        uint4_int4_flag: Only False: 4-bit types are written as such whenever the configuration has them.
        dynamo: Only False: neither of torch's exporters is used.
        onnx_config: File name, dialect and batch.

    Returns:
        What was written and how it compares.
    """
    from quantry.torchfront import ExportOptions, export

    refused = {
        "verbose": verbose,
        "do_constant_folding": not do_constant_folding,
        "uint4_int4_flag": uint4_int4_flag,
        "dynamo": dynamo,
        "operator_export_type": getattr(operator_export_type, "name", operator_export_type) not in (None, "ONNX"),
    }
    for name, wrong in refused.items():
        if wrong:
            raise RecipeError(f"export_onnx takes {name} at its default only; the documentation of it says why")
    config = onnx_config or OnnxExporterConfig()
    if not isinstance(output_dir, str | os.PathLike):
        raise RecipeError(f"output_dir must be a path, got {type(output_dir).__name__}; in export_onnx")
    path = _file(Path(output_dir), config)
    path.parent.mkdir(parents=True, exist_ok=True)
    options = ExportOptions(
        format=config.format,
        input_names=(input_names,) if isinstance(input_names, str) else tuple(input_names),
        output_names=(output_names,) if isinstance(output_names, str) else tuple(output_names),
        dynamic_batch=config.dynamic_batch,
        opset=opset_version,
    )
    return export(model, path, input_args, options)


def _file(place: Path, config: OnnxExporterConfig) -> Path:
    """Return the file to write: the place itself where that is named like a model."""
    if place.suffix.lower() != ".onnx" or place.is_dir():
        return place / config.file_name
    if config.file_name not in (FILE_NAME, place.name):
        raise RecipeError(
            f"output_dir must be a directory where a file name is given too, got {str(place)!r} and "
            f"{config.file_name!r}; in export_onnx"
        )
    return place
