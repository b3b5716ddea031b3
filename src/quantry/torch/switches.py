"""The switches of AMD's training scripts, under their names in ``quark.torch.quantization.graph.torch_utils``."""

from typing import Any


def _enable_observer(model: Any, enable: bool = True) -> None:
    """Let scales follow the values of training batches, or fix them.

    Args:
        model: A quantized module, or a model that contains one.
        enable: Whether scales follow the values.
    """
    from quantry.torchfront import freeze_observers, start_observers

    (start_observers if enable else freeze_observers)(model)


def _enable_fake_quant(model: Any, enable: bool = True) -> None:
    """Quantize, or compute in float.

    Args:
        model: A quantized module, or a model that contains one.
        enable: Whether values are quantized.
    """
    from quantry.torchfront import enable_quantizers

    enable_quantizers(model, enabled=enable)


def _active_bn(model: Any, enable: bool = True) -> None:
    """Update the statistics of batch normalization in training mode, or use the stored ones.

    Args:
        model: A quantized module, or a model that contains one.
        enable: Whether statistics are updated.
    """
    from quantry.torchfront import freeze_batch_norm

    freeze_batch_norm(model, frozen=not enable)


def allow_exported_model_train_eval(model: Any) -> Any:
    """Return the model: quantized modules have ``train()`` and ``eval()`` like any module.

    Args:
        model: A quantized module, or a model that contains one.
    """
    return model


def _move_exported_model_to_eval(model: Any) -> Any:
    """Return the model in evaluation mode.

    Args:
        model: A quantized module, or a model that contains one.
    """
    return model.eval()


def _move_exported_model_to_train(model: Any) -> Any:
    """Return the model in training mode.

    Args:
        model: A quantized module, or a model that contains one.
    """
    return model.train()
