"""Algorithms of a `QConfig`, as AMD Quark 0.10 and later spell them.

Each is translated into the options that switch the same algorithm on in a `QuantizationConfig`, so that one table holds
what every option means. An argument left at None takes that option's own default.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Self

from quantry.onnx.config import KnownAttributes
from quantry.onnx.specs import QLayerConfig
from quantry.recipe.checked import KnownArguments

__all__ = [
    "AdaQuantConfig",
    "AdaRoundConfig",
    "AlgoConfig",
    "AutoMixprecisionConfig",
    "BiasCorrectionConfig",
    "CLEConfig",
    "GPTQConfig",
    "QuarotConfig",
    "SmoothQuantConfig",
]

_WORDS = re.compile(r"(?:^|_)([a-z0-9]+)")
_ACRONYMS = {"lr": "LR", "qdq": "QDQ", "gds": "GDS", "mse": "MSE", "cle": "CLE", "ft": "FT"}


def _option_name(argument: str) -> str:
    """Return the option that an argument stands for: ``num_iterations`` for NumIterations."""
    return _WORDS.sub(lambda found: _ACRONYMS.get(found[1], found[1][0].upper() + found[1][1:]), argument)


@dataclass
class AlgoConfig(KnownAttributes, KnownArguments):
    """An algorithm on top of plain quantization; the base of those below."""

    switch: ClassVar[tuple[str, ...]] = ()
    """Fields of QuantizationConfig that are True with this algorithm."""
    holder: ClassVar[str] = ""
    """The option that holds the settings in a dict; empty where they are options themselves."""

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the algorithm with settings under the names of options, such as NumIterations."""
        arguments = {_option_name(part.name): part.name for part in fields(cls)}
        return cls(**{arguments[name]: value for name, value in settings.items() if name in arguments})

    def settings(self) -> dict[str, Any]:
        """Return the settings under the names of options, without those left at None."""
        given = {part.name: getattr(self, part.name) for part in fields(self)}
        return {_option_name(name): value for name, value in given.items() if value is not None}

    def options(self) -> dict[str, Any]:
        """Return the keys of ``extra_options`` that ask for the same."""
        return {self.holder: self.settings()} if self.holder else self.settings()


@dataclass
class CLEConfig(AlgoConfig):
    """Cross-layer equalization.

    Attributes:
        cle_steps: Sweeps; -1 repeats until the weights rest.
        cle_scale_append_bias: Let a bias count in the range of its channel.
        cle_scale_use_threshold: Leave channels with little weight alone.
        cle_weight_threshold: What is little.
        cle_total_layer_diff_threshold: The change that counts as rest.
    """

    switch: ClassVar[tuple[str, ...]] = ("include_cle",)

    cle_steps: int = 1
    cle_scale_append_bias: bool = True
    cle_scale_use_threshold: bool = True
    cle_weight_threshold: float = 0.5
    cle_total_layer_diff_threshold: float = 1.9e-7


@dataclass
class SmoothQuantConfig(AlgoConfig):
    """SmoothQuant.

    Attributes:
        alpha: How much is moved from activations to weights.
    """

    switch: ClassVar[tuple[str, ...]] = ("include_sq",)

    alpha: float = 0.5

    def settings(self) -> dict[str, Any]:
        """Return the settings under the names of options."""
        return {"SmoothAlpha": self.alpha}


@dataclass
class BiasCorrectionConfig(AlgoConfig):
    """Correction of the shift of each channel's mean in its bias."""

    def settings(self) -> dict[str, Any]:
        """Return the settings under the names of options."""
        return {"BiasCorrection": True}


@dataclass
class GPTQConfig(AlgoConfig):
    """GPTQ.

    Attributes:
        bits: Width of weights.
        block_size: Columns that are rounded before the rest is updated.
        perc_damp: Damping, as a part of the mean of the diagonal.
        group_size: Values that share a scale; -1 for all of a channel or tensor.
        act_order: Round the columns with the strongest inputs first.
        per_channel: One scale for each channel.
        mse: Choose ranges by least squares.
        weight_symmetric: Fix zero points at the centre.
    """

    holder: ClassVar[str] = "GPTQParams"

    bits: int | None = None
    block_size: int | None = None
    perc_damp: float | None = None
    group_size: int | None = None
    act_order: bool | None = None
    per_channel: bool | None = None
    mse: bool | None = None
    weight_symmetric: bool | None = None

    def options(self) -> dict[str, Any]:
        """Return the keys of ``extra_options`` that ask for the same."""
        return {"UseGPTQ": True, **super().options()}


@dataclass
class QuarotConfig(AlgoConfig):
    """QuaRot.

    Attributes:
        r_matrix_dim: Size of the rotation.
        use_random_had: Use random Hadamard matrices.
        r_config_path: The file that names the layers.
    """

    switch: ClassVar[tuple[str, ...]] = ("include_rotation",)

    r_matrix_dim: int = 4096
    use_random_had: bool = False
    r_config_path: str | None = None

    def settings(self) -> dict[str, Any]:
        """Return the settings under the names of options."""
        named = {"RMatrixDim": self.r_matrix_dim, "UseRandomHad": self.use_random_had}
        return named if self.r_config_path is None else {**named, "RConfigPath": self.r_config_path}


@dataclass
class _FastFinetune(AlgoConfig):
    """What AdaRound and AdaQuant have in common; the keys of ``FastFinetune`` in docs/reference/options.md."""

    switch: ClassVar[tuple[str, ...]] = ("include_fast_ft",)
    holder: ClassVar[str] = "FastFinetune"
    algorithm: ClassVar[str] = ""

    optim_device: str | None = None
    infer_device: str | None = None
    fixed_seed: int | None = None
    data_size: int | None = None
    batch_size: int | None = None
    num_batches: int | None = None
    num_iterations: int | None = None
    learning_rate: float | None = None
    early_stop: bool | None = None
    lr_adjust: Sequence[float] | None = None
    target_op_type: Iterable[str] | None = None
    selective_update: bool | None = None
    update_bias: bool | None = None
    output_qdq: bool | None = None
    drop_ratio: float | None = None
    mem_opt_level: int | None = None
    cache_dir: str | None = None
    parallel: bool | None = None
    dynamic_batch: bool | None = None
    reg_param: float | None = None
    beta_range: Sequence[float] | None = None
    warm_start: float | None = None
    log_period: int | None = None
    ref_model_path: str | None = None
    output_index: int | None = None
    select_max_mem_layer: bool | None = None
    num_workers: int | None = None
    pin_memory: bool | None = None
    use_gds: bool | None = None

    def settings(self) -> dict[str, Any]:
        """Return the settings under the names of options, without those left at None."""
        return {"OptimAlgorithm": self.algorithm, **super().settings()}


@dataclass
class AdaRoundConfig(_FastFinetune):
    """AdaRound: learns for every weight whether to round it up or down.

    Arguments are the keys of ``FastFinetune``: ``num_iterations`` is NumIterations.
    """

    algorithm: ClassVar[str] = "adaround"


@dataclass
class AdaQuantConfig(_FastFinetune):
    """AdaQuant: trains the weights themselves.

    Arguments are the keys of ``FastFinetune``: ``num_iterations`` is NumIterations. Unlike there, 3000 iterations are
    made, and biases stay as they are.
    """

    algorithm: ClassVar[str] = "adaquant"

    num_iterations: int | None = 3000
    update_bias: bool | None = False


@dataclass
class AutoMixprecisionConfig(AlgoConfig):
    """Mixed precision.

    Arguments are the keys of ``AutoMixprecision``, of both generations: ``metric_threshold`` is MetricThreshold.
    """

    switch: ClassVar[tuple[str, ...]] = ("include_auto_mp",)
    holder: ClassVar[str] = "AutoMixprecision"

    target_layer_config: QLayerConfig | Sequence[QLayerConfig] | Mapping[QLayerConfig, Sequence[str]] | None = None
    target_op_type: Iterable[str] | None = None
    subgraph_json: str | None = None
    include_layers: Sequence[str] | None = None
    exclude_layers: Sequence[str] | None = None
    data_size: int | None = None
    metric_output_index: int | None = None
    metric_distance_fn: Callable[..., float] | None = None
    metric_evaluate_fn: Callable[..., float] | None = None
    metric_default: str | None = None
    metric_threshold: float = 0
    metric_optimize_object: str | None = None
    sensitivity_cache_file: str | None = None
    worker_num: int | None = None
    dual_quant_nodes: bool | None = None
    no_input_qdq_shared: bool | None = None
    shared_param_mode: str | None = None
    act_target_quant_type: Any = None
    weight_target_quant_type: Any = None
    bias_target_quant_type: Any = None
    output_index: int | None = None
    top1_acc_target: float | None = None
    evaluate_function: Callable[..., float] | None = None
    l2_target: float | None = None
    num_target: int | None = None
    target_quant_type: Any = None
    target_tensors: Sequence[str] | None = None
    target_indices: Sequence[int] | None = None
    exclude_indices: Sequence[int] | None = None
    auto_mix_use_fast_ft: bool | None = None
