"""An Olive pass that quantizes with quantry, so that an Olive workflow can name quantry as its quantizer.

Olive finds the pass through a package file, see README.md next to this file.
"""

from pathlib import Path
from typing import Any

import onnx
from olive.common.config_utils import validate_config
from olive.data.config import DataConfig
from olive.model import ONNXModelHandler
from olive.model.utils import resolve_onnx_path
from olive.passes import Pass
from olive.passes.onnx.common import get_external_data_config, model_proto_to_olive_model
from olive.passes.pass_config import BasePassConfig, PassConfigParam

import quantry


class QuantryQuantization(Pass):
    """Quantizes an ONNX model with one of quantry's recipes."""

    @classmethod
    def _default_config(cls, accelerator_spec: Any) -> dict[str, PassConfigParam]:
        del accelerator_spec
        return {
            "recipe": PassConfigParam(
                type_=str, default_value="S8S8_AAWS", description="Name of a preset, or path of a recipe file."
            ),
            "data_config": PassConfigParam(
                type_=DataConfig | dict | str, default_value=None, description="Calibration data; None is random data."
            ),
            **get_external_data_config(),
        }

    def _run_for_config(
        self, model: ONNXModelHandler, config: BasePassConfig, output_model_path: str
    ) -> ONNXModelHandler:
        output = resolve_onnx_path(output_model_path, Path(model.model_path).name)
        data = None
        if config.data_config is not None:
            container = validate_config(config.data_config, DataConfig).to_data_container()
            data = container.create_calibration_dataloader(model_path=model.model_path, io_config=model.io_config)
        result = quantry.quantize(model.model_path, data, config.recipe)
        result.save(output)
        return model_proto_to_olive_model(onnx.load(output), output, config)
