"""`ModelExporter` and `export_onnx`: write quantized ONNX models."""

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
    """Packing of the weights of language models. It does not apply to ONNX, so every field must have its default.

    Attributes:
        weight_merge_groups: Must be None.
        kv_cache_group: Must be empty.
        min_kv_scale: Must be 0.
        weight_format: Must be "real_quantized".
        pack_method: Must be "reorder".
    """

    weight_merge_groups: Sequence[Sequence[str]] | None = None
    kv_cache_group: Sequence[str] = field(default_factory=tuple)
    min_kv_scale: float = 0.0
    weight_format: str = "real_quantized"
    pack_method: str = "reorder"

    def __post_init__(self) -> None:
        values = (self.weight_merge_groups, tuple(self.kv_cache_group), self.min_kv_scale)
        if values != (None, (), 0.0) or (self.weight_format, self.pack_method) != ("real_quantized", "reorder"):
            raise RecipeError(f"JsonExporterConfig must have its defaults for export to ONNX, got {self}")


@dataclass(frozen=True)
class OnnxExporterConfig(Checked):
    """Options of the ONNX file.

    Attributes:
        file_name: Name of the file in the export directory.
        format: The format, such as ``quantry.recipe.VitisQdq()``; None writes standard QDQ.
        dynamic_batch: Make the first axis dynamic; False uses the sizes of the example.
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
    """Configuration of a `ModelExporter`.

    Attributes:
        json_export_config: Must have its defaults.
        onnx_export_config: Options of the ONNX file; None for the defaults.
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
        config: The configuration.
        export_dir: The directory.
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
        """Write a model as quantized ONNX and compare it with the torch module on the example.

        Args:
            model: A quantized module, or a model that contains one.
            input_args: Example arguments: a tensor or a tuple.
            arguments: ``input_names``, ``output_names`` and the other arguments of `export_onnx`.

        Returns:
            The file and the result of the comparison; AMD's method returns nothing.
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
    """Write a model as quantized ONNX and compare it with the torch module on the example.

    Args:
        model: A quantized module, or a model that contains one.
        output_dir: The directory, created if it is missing; or the file, if the name ends in ``.onnx``.
        input_args: Example arguments: a tensor or a tuple.
        opset_version: Minimum opset of the file; None takes what the types need.
        input_names: Names of the inputs.
        output_names: Names of the outputs.
        verbose: Must be False; use Python's logging.
        do_constant_folding: Must be True.
        operator_export_type: Must be None or torch's ``ONNX``.
        uint4_int4_flag: Must be False: 4-bit types are always written as 4-bit types.
        dynamo: Must be False: torch's exporters are not used.
        onnx_config: File name, format and batch.

    Returns:
        The file and the result of the comparison.
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
            raise RecipeError(f"{name} must have its default, got another value in export_onnx; see its documentation")
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


def _file(path: Path, config: OnnxExporterConfig) -> Path:
    """Return the file to write; a path that ends in ``.onnx`` is the file itself."""
    if path.suffix.lower() != ".onnx" or path.is_dir():
        return path / config.file_name
    if config.file_name not in (FILE_NAME, path.name):
        raise RecipeError(
            f"output_dir must be a directory if file_name is set too, got {str(path)!r} and "
            f"{config.file_name!r}; in export_onnx"
        )
    return path
