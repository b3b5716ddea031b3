"""`ModelQuantizer`: calibrates a model, and freezes it after training."""

import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quantry.errors import DataError, ModelError, RecipeError, known_keywords
from quantry.recipe import Recipe, resolve_recipe
from quantry.torch.config import QConfig, QTensorConfig
from quantry.torch.translate import NodeNames, recipe_of

if TYPE_CHECKING:
    from quantry.torchfront import QuantizedModule


class ModelQuantizer:
    """Quantizes PyTorch models.

    It takes a `QConfig`, or a recipe in any form that ``quantry.quantize`` accepts: a `Recipe`, the name of a preset,
    the path of a recipe file, or plain data.

    Attributes:
        config: The configuration: a `QConfig` if one was given, else a `Recipe`.

    Raises:
        RecipeError: The configuration is neither, or there is no such preset or file.

    Example:
        >>> quantizer = ModelQuantizer("XINT8")  # doctest: +SKIP
        >>> quantized = quantizer.quantize_model(graph_model, [images])  # doctest: +SKIP
    """

    @known_keywords("ModelQuantizer", {"quant_config": "config", "recipe": "config", "quantization_config": "config"})
    def __init__(self, config: QConfig | Recipe | str | Path | Mapping[str, Any], multi_device: bool = False) -> None:
        if multi_device:
            raise RecipeError("ModelQuantizer.multi_device must be False, because one device is used, got True")
        if not isinstance(config, QConfig | Recipe | str | Path | Mapping):
            raise RecipeError(
                "ModelQuantizer.config must be a QConfig, a Recipe, a preset name, a recipe file or a mapping, got "
                f"{type(config).__name__}"
            )
        self.config: QConfig | Recipe = config if isinstance(config, QConfig) else resolve_recipe(config)[0]

    @known_keywords("ModelQuantizer.quantize_model", {"data": "dataloader", "calibration_data": "dataloader"})
    def quantize_model(self, model: Any, dataloader: Any = None) -> "QuantizedModule":
        """Calibrate a model and return a quantized module, ready to be evaluated, trained or frozen.

        Args:
            model: A captured graph, or a module, which is captured with the first sample. It is not changed.
            dataloader: Calibration data: a list of tensors, dicts or tuples, or a DataLoader. It may be empty if
                training learns the scales of activations: they then start at the ranges of the first training batch.

        Returns:
            The quantized module, in evaluation mode.

        Raises:
            ModelError: The model is already quantized, cannot be captured, or has an unsupported operator.
            DataError: The data does not fit the model, or there is none to capture a module with.
        """
        from quantry.torchfront import (
            capture,
            is_captured,
            is_module,
            learn_scales,
            quantize_graph,
            start_observers,
        )
        from quantry.torchfront.quantized_module import refuse_quantized

        if is_module(model):
            refuse_quantized(model, "quantize_model")
        if is_module(model) and not is_captured(model):
            dataloader, sample = _first_sample(dataloader)
            positional, keywords = ((), sample) if isinstance(sample, dict) else (_taken(model, sample), None)
            model = capture(model, positional, keywords)
        if isinstance(self.config, Recipe):
            return quantize_graph(model, dataloader, self.config)
        layer = self.config.global_quant_config
        later = _gradient(layer.activation) is not None and isinstance(dataloader, list | tuple) and not dataloader
        quantized = quantize_graph(model, None if later else dataloader, recipe_of(self.config, _node_names(model)))
        for config, weights in ((layer.weight, True), (layer.activation, False)):
            gradient = _gradient(config)
            if gradient is not None:
                learn_scales(quantized, gradient, weights=weights, activations=not weights)
        if later:
            start_observers(quantized, once=True)
        return quantized

    @staticmethod
    def freeze(model: Any, quantize: bool | None = None, runtime_options: Any = None) -> Any:
        """Return the final model: batch normalization folded, scales fixed and within the NPU's limits.

        Args:
            model: A quantized module, or a model that contains quantized modules, which are replaced in it.
            quantize: None or True; weights are always stored quantized.
            runtime_options: Must be None; it is for AMD's own kernels.

        Raises:
            ModelError: There is no quantized module.
            RecipeError: An option asks for something else.
        """
        if quantize is False or runtime_options is not None:
            raise RecipeError(
                f"freeze must have quantize=True and runtime_options=None, got {quantize!r} and {runtime_options!r}"
            )
        from quantry.torchfront import QuantizedModule, freeze, is_module

        if isinstance(model, QuantizedModule):
            return freeze(model)
        if not is_module(model):
            raise ModelError(f"a model to freeze must be a torch module, got {type(model).__name__}; in freeze")
        inside = [name for name, submodule in model.named_modules() if isinstance(submodule, QuantizedModule)]
        if not inside:
            raise ModelError(
                f"a model to freeze must be or contain a quantized module, got {type(model).__name__} without any"
            )
        for path in inside:
            holder, _, leaf = path.rpartition(".")
            setattr(model.get_submodule(holder), leaf, freeze(model.get_submodule(path)))
        return model


def _first_sample(data: Any) -> tuple[Any, Any]:
    """Return the data, including its first sample, and that sample as call arguments."""
    if hasattr(data, "shape") and len(data) > 0:
        return data, (data[:1],)  # samples in one tensor
    samples = data if isinstance(data, list | tuple) else list(data or ())
    if not samples:
        raise DataError(
            "a module needs data, because it is captured with the first calibration sample, got no data; give data, or "
            "capture it with quantry.torch.capture(model, example)"
        )
    first = samples[0]
    if isinstance(first, dict):
        return samples, first
    return samples, tuple(first) if isinstance(first, list | tuple) else (first,)


def _taken(model: Any, sample: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return as many items of a sample as the model has parameters; labels follow them."""
    parameters = inspect.signature(model.forward).parameters.values()
    if any(entry.kind is entry.VAR_POSITIONAL for entry in parameters):
        return sample
    return sample[: sum(entry.kind in (entry.POSITIONAL_ONLY, entry.POSITIONAL_OR_KEYWORD) for entry in parameters)]


def _node_names(graph: Any) -> tuple[NodeNames, ...]:
    from quantry.torchfront import is_captured
    from quantry.torchfront.lowering import lower

    if not is_captured(graph):
        return _onnx_node_names(graph)
    lowered = lower(graph)
    known_nodes = []
    for node in lowered.model.graph:
        if node.op_type == "BatchNormalization":
            continue  # Folded by the prepare stage, before nodes are selected.
        name = node.name or ""
        scope = lowered.scopes[name]
        tensors = [output.name or "" for output in node.outputs]
        known_nodes.append(NodeNames(name, (*scope.paths, *tensors, name), scope.classes))
    return tuple(known_nodes)


def _onnx_node_names(model: Any) -> tuple[NodeNames, ...]:
    """Return the names of the nodes of an ONNX model, with operator types instead of module classes."""
    import onnx_ir as ir

    from quantry.graph.load import read_model

    graph = model if isinstance(model, ir.Model) else read_model(model)
    return tuple(
        NodeNames(node.name or "", (*(output.name or "" for output in node.outputs), node.name or ""), (node.op_type,))
        for node in graph.graph
        if node.op_type != "BatchNormalization"
    )


def _gradient(config: QTensorConfig | None) -> Any:
    from quantry.numerics.torch_quantizer import Gradient

    return None if config is None or not config.learned else Gradient(config.learned)
