"""External data files of a model: which there are, and whether each weight's bytes are really there."""

from collections.abc import Iterator
from pathlib import Path

import onnx_ir as ir

from quantry.errors import ModelError


def external_tensors(model: ir.Model) -> Iterator[ir.ExternalTensor]:
    """Yield every tensor of the model that lies in another file, initializers and node attributes alike."""
    for graph in (*model.graphs(), *(function.graph for function in model.functions.values())):
        for value in graph.initializers.values():
            if isinstance(value.const_value, ir.ExternalTensor):
                yield value.const_value
        for node in graph:
            for attribute in node.attributes.values():
                if not attribute.is_ref() and isinstance(attribute.value, ir.ExternalTensor):
                    yield attribute.value


def external_files(model: ir.Model) -> tuple[tuple[str, Path], ...]:
    """Return the external data files as (location written in the model, path), sorted, each once."""
    return tuple(sorted({(str(tensor.location), Path(tensor.path)) for tensor in external_tensors(model)}))


def check_external_data(model: ir.Model, label: str) -> None:
    """Check that every external tensor's bytes exist inside the model's folder, without reading them.

    Raises:
        ModelError: If a file is missing, shorter than declared, or outside the model's folder.
    """
    sizes: dict[str, int] = {}
    for tensor in external_tensors(model):
        where = f"tensor {tensor.name!r} at {str(tensor.location)!r} in {label}"
        _check_containment(tensor, where)
        if tensor.path not in sizes:
            path = Path(tensor.path)
            if not path.is_file():
                raise ModelError(f"external data must exist beside the model, found no file {path}; {where}")
            status = path.stat()
            if status.st_nlink > 1:
                # onnx-ir refuses such files when it reads them; say so before any work is done.
                raise ModelError(
                    f"external data must be a file of its own, got {status.st_nlink} hard links; copy it; {where}"
                )
            sizes[tensor.path] = status.st_size
        _check_length(tensor, sizes[tensor.path], where)


def _check_containment(tensor: ir.ExternalTensor, where: str) -> None:
    folder = Path(tensor.base_dir).resolve()
    target = Path(tensor.path).resolve()
    if not target.is_relative_to(folder):
        raise ModelError(f"external data must lie inside the model's folder {folder}, got {target}; {where}")


def _check_length(tensor: ir.ExternalTensor, size: int, where: str) -> None:
    declared = tensor.nbytes if tensor.length is None else tensor.length
    if declared != tensor.nbytes:
        raise ModelError(
            f"external data must have the {tensor.nbytes} bytes of its shape, got length {declared}; {where}"
        )
    end = (tensor.offset or 0) + declared
    if end > size:
        raise ModelError(f"external data must reach byte {end}, got a file of {size} bytes; {where}")
