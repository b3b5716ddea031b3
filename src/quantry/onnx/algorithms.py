"""Algorithms of a `QConfig`, as AMD Quark 0.10 and later spell them.

Each class stands for the options that switch the same algorithm on in a `QuantizationConfig`, so the option table is
the only place that knows what a setting means. Arguments are option names in lower case, ``num_iterations`` for
NumIterations; one left at None takes the option's own default.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, make_dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar

from quantry.onnx.config import KnownAttributes
from quantry.onnx.options import NESTED, ROWS
from quantry.recipe.checked import KnownArguments

_WORDS = re.compile(r"(?:^|_)([a-z0-9]+)")
_ACRONYMS = {"lr": "LR", "qdq": "QDQ", "gds": "GDS", "mse": "MSE", "cle": "CLE", "ft": "FT"}


def _option_name(argument: str) -> str:
    """Return the option for an argument: NumIterations for ``num_iterations``."""
    return _WORDS.sub(lambda match: _ACRONYMS.get(match[1], match[1][0].upper() + match[1][1:]), argument)


@dataclass
class AlgoConfig(KnownAttributes, KnownArguments):
    """An algorithm on top of plain quantization; the base class."""

    name: ClassVar[str] = ""
    """Its name in plain data."""
    switch: ClassVar[tuple[str, ...]] = ()
    """Fields of QuantizationConfig that this algorithm sets to True."""
    holder: ClassVar[str] = ""
    """The option that holds the settings as a dict; empty if they are options themselves."""
    fixed: ClassVar[Mapping[str, Any]] = {}
    """Options that are always set."""

    if TYPE_CHECKING:  # The arguments of the classes below come from the table, which type checkers do not see.

        def __init__(self, *values: Any, **settings: Any) -> None: ...

        def __getattr__(self, name: str) -> Any: ...

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Self:
        """Return the algorithm for settings under option names, such as NumIterations."""
        arguments = {_option_name(field.name): field.name for field in fields(cls)}
        return cls(**{arguments[name]: value for name, value in settings.items() if name in arguments})

    def settings(self) -> dict[str, Any]:
        """Return the settings under option names, without those left at None."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {_option_name(name): value for name, value in values.items() if value is not None}

    def options(self) -> dict[str, Any]:
        """Return the ``extra_options`` that ask for this algorithm."""
        return {**self.fixed, self.holder: self.settings()} if self.holder else {**self.fixed, **self.settings()}


@dataclass
class SmoothQuantConfig(AlgoConfig):
    """SmoothQuant.

    Attributes:
        alpha: How much of the activations' range moves into the weights, 0 to 1.
    """

    name: ClassVar[str] = "smooth_quant"
    switch: ClassVar[tuple[str, ...]] = ("include_sq",)

    alpha: float = 0.5

    def settings(self) -> dict[str, Any]:
        """Return the settings under option names."""
        return {"SmoothAlpha": self.alpha}


@dataclass
class BiasCorrectionConfig(AlgoConfig):
    """Corrects the shift of each channel's mean in its bias."""

    name: ClassVar[str] = "bias_correction"
    fixed: ClassVar[Mapping[str, Any]] = {"BiasCorrection": True}


_Algorithm = TypeVar("_Algorithm", bound=type[AlgoConfig])


def _algorithm(name: str, title: str, arguments: str, base: _Algorithm, **defaults: Any) -> _Algorithm:
    """Return an algorithm class whose arguments are rows of the option table.

    Args:
        name: Name of the class.
        title: First line of its documentation.
        arguments: Names of its arguments in the order of AMD's signature.
        base: The class that says which options hold the settings.
        defaults: Defaults that are not None.
    """
    rows = {row.key: row for row in NESTED[base.holder]} if base.holder else ROWS
    argument_fields: list[tuple[str, Any, Any]] = [
        (argument, rows[_option_name(argument)].kind.annotation | None, defaults.get(argument))
        for argument in arguments.split()
    ]
    algorithm: Any = make_dataclass(name, argument_fields, bases=(base,), namespace={"__module__": __name__})
    lines = "".join(f"    {argument}: {rows[_option_name(argument)].meaning}\n" for argument in arguments.split())
    algorithm.__doc__ = f"{title}\n\nAttributes:\n{lines}"
    return algorithm  # type: ignore[no-any-return]


class _Equalization(AlgoConfig):
    name = "cle"
    switch = ("include_cle",)


class _Gptq(AlgoConfig):
    name = "gptq"
    holder = "GPTQParams"
    fixed: ClassVar[Mapping[str, Any]] = {"UseGPTQ": True}


class _Rotation(AlgoConfig):
    name = "quarot"
    switch = ("include_rotation",)


class _FastFinetune(AlgoConfig):
    name: ClassVar[str] = "adaround"
    switch = ("include_fast_ft",)
    holder = "FastFinetune"

    def settings(self) -> dict[str, Any]:
        """Return the settings under option names, without those left at None."""
        return {"OptimAlgorithm": self.name, **super().settings()}


class _AdaQuant(_FastFinetune):
    name = "adaquant"


class _MixedPrecision(AlgoConfig):
    name = "auto_mixprecision"
    switch = ("include_auto_mp",)
    holder = "AutoMixprecision"


_FINETUNE = (
    "optim_device infer_device fixed_seed data_size batch_size num_batches num_iterations learning_rate early_stop "
    "output_index lr_adjust target_op_type selective_update update_bias output_qdq drop_ratio mem_opt_level cache_dir "
    "log_period ref_model_path dynamic_batch parallel reg_param beta_range warm_start select_max_mem_layer num_workers "
    "pin_memory use_gds"
)
_MIXED = (
    "target_layer_config target_op_type subgraph_json include_layers exclude_layers data_size metric_output_index "
    "metric_distance_fn metric_evaluate_fn metric_default metric_threshold metric_optimize_object "
    "sensitivity_cache_file worker_num dual_quant_nodes no_input_qdq_shared shared_param_mode act_target_quant_type "
    "weight_target_quant_type bias_target_quant_type output_index top1_acc_target evaluate_function l2_target "
    "num_target target_quant_type target_tensors target_indices exclude_indices auto_mix_use_fast_ft"
)

CLEConfig = _algorithm(
    "CLEConfig",
    "Cross-layer equalization.",
    "cle_balance_method cle_steps cle_weight_threshold cle_scale_append_bias cle_scale_use_threshold "
    "cle_total_layer_diff_threshold",
    _Equalization,
    cle_balance_method="max",
    cle_steps=1,
    cle_scale_append_bias=True,
    cle_scale_use_threshold=True,
    cle_weight_threshold=0.5,
    cle_total_layer_diff_threshold=1.9e-7,
)
GPTQConfig = _algorithm(
    "GPTQConfig",
    "GPTQ.",
    "bits block_size group_size perc_damp act_order per_channel mse weight_symmetric",
    _Gptq,
)
QuarotConfig = _algorithm(
    "QuarotConfig",
    "QuaRot.",
    "r_matrix_dim use_random_had r_config_path",
    _Rotation,
    r_matrix_dim=4096,
    use_random_had=False,
)
AdaRoundConfig = _algorithm("AdaRoundConfig", "AdaRound: learns the rounding of weights.", _FINETUNE, _FastFinetune)
# Unlike FastFinetune, AMD's class trains for 3000 iterations and leaves biases alone.
AdaQuantConfig = _algorithm(
    "AdaQuantConfig", "AdaQuant: trains the weights.", _FINETUNE, _AdaQuant, num_iterations=3000, update_bias=False
)
AutoMixprecisionConfig = _algorithm(
    "AutoMixprecisionConfig",
    "Mixed precision; the arguments are those of both generations of AMD Quark.",
    _MIXED,
    _MixedPrecision,
    metric_threshold=0,
)

ALGORITHMS: tuple[type[AlgoConfig], ...] = (
    CLEConfig,
    SmoothQuantConfig,
    BiasCorrectionConfig,
    GPTQConfig,
    QuarotConfig,
    AdaRoundConfig,
    AdaQuantConfig,
    AutoMixprecisionConfig,
)
"""Every algorithm."""
