"""Named configurations in all forms that scripts use, and unknown names."""

import copy
import pickle
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from facade_models import Reader, cnn

from quantry.errors import RecipeError, SelectionError
from quantry.onnx import (
    CLEConfig,
    Config,
    Int8Spec,
    ModelQuantizer,
    QConfig,
    QLayerConfig,
    QTensorConfig,
    QuantizationConfig,
    UInt8Spec,
    get_default_config,
)

INT8 = QConfig(QLayerConfig(UInt8Spec(), weight=Int8Spec()))


def edited() -> Config:
    quant_config = get_default_config("XINT8")
    assert quant_config.extra_options is not None
    quant_config.extra_options["CLESteps"] = 1
    quant_config.enable_npu_cnn = True
    quant_config.include_cle = quant_config.include_cle or True
    return Config(global_quant_config=quant_config)


def edited_inside() -> Config:
    config = QConfig.get_default_config("XINT8")
    assert config.global_quant_config.extra_options is not None
    config.global_quant_config.extra_options["CLESteps"] = 1
    config.global_quant_config.include_cle = True
    return config


FORMS: dict[str, Callable[[], Any]] = {
    "bare": lambda: get_default_config("XINT8"),
    "by keyword": lambda: Config(global_quant_config=get_default_config("XINT8")),
    "by position": lambda: Config(get_default_config("XINT8")),
    "of the class": lambda: QConfig.get_default_config("XINT8"),
    "copied": lambda: Config(global_quant_config=copy.deepcopy(get_default_config("XINT8"))),
    "copied whole": lambda: copy.deepcopy(QConfig.get_default_config("XINT8")),
    "pickled": lambda: pickle.loads(pickle.dumps(get_default_config("XINT8"))),
    "replaced": lambda: replace(get_default_config("XINT8"), include_cle=True),
    "edited": edited,
    "edited inside": edited_inside,
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_model(form: str) -> None:
    reference = ModelQuantizer(Config(get_default_config("XINT8"))).quantize_model(cnn(), None, Reader())
    assert ModelQuantizer(FORMS[form]()).quantize_model(cnn(), None, Reader()) == reference


def test_edited_configuration_is_used() -> None:
    config = get_default_config("XINT8")
    config.nodes_to_exclude = ["Gemm_12"]
    model = ModelQuantizer(config).quantize_model(cnn(), None, Reader())
    assert model is not None
    assert not any(
        name.startswith("w3") and name.endswith("_quantized")
        for name in (entry.name for entry in model.graph.initializer)
    )


def test_copies_of_the_class_are_copies() -> None:
    first = QConfig.get_default_config("XINT8")
    first.global_quant_config.nodes_to_exclude.append("x")
    assert QConfig.get_default_config("XINT8").global_quant_config.nodes_to_exclude == []
    with pytest.raises(RecipeError, match="did you mean 'XINT8'"):
        QConfig.get_default_config("XIN8")


def test_options_of_a_layer_configuration_can_be_edited() -> None:
    config = copy.deepcopy(INT8)
    config.extra_options["ActivationSymmetric"] = True
    assert config.to_job().recipe.plan.activation.symmetric
    assert INT8.extra_options == {}


@pytest.mark.parametrize(
    ("config", "name", "hint"),
    [
        (QuantizationConfig(), "calibration_method", "did you mean 'calibrate_method'"),
        (get_default_config("XINT8"), "include_cel", "did you mean 'include_cle'"),
        (QuantizationConfig(), "zzz", "known attributes, got 'zzz'$"),
        (Config(), "global_config", "did you mean 'global_quant_config'"),
        (Config(), "enable_npu_cnn", "known: global_quant_config"),
        (copy.deepcopy(INT8), "exclud", "did you mean 'exclude'"),
    ],
)
def test_unknown_attribute_raises_with_the_nearest_spelling(config: Any, name: str, hint: str) -> None:
    before = copy.deepcopy(config)
    with pytest.raises(RecipeError, match=hint):
        setattr(config, name, True)
    assert config == before
    assert not hasattr(config, name)


@pytest.mark.parametrize(
    ("kind", "name", "hint"),
    [
        (QuantizationConfig, "include_cel", "QuantizationConfig must be .* did you mean 'include_cle'"),
        (Config, "global_quant_conf", "did you mean 'global_quant_config'"),
        (QLayerConfig, "weights", "did you mean 'weight'"),
        (QTensorConfig, "symetric", "did you mean 'symmetric'"),
        (UInt8Spec, "scale_typ", "UInt8Spec must be .* did you mean 'scale_type'"),
        (CLEConfig, "cle_step", "did you mean 'cle_steps'"),
    ],
)
def test_unknown_argument_raises_with_the_nearest_spelling(kind: Callable[..., Any], name: str, hint: str) -> None:
    with pytest.raises(RecipeError, match=hint):
        kind(**{name: True})


def test_configuration_of_another_type_raises() -> None:
    with pytest.raises(RecipeError, match="takes a QuantizationConfig, a Config of one, or a QConfig, got str"):
        ModelQuantizer("XINT8").quantize_model(cnn(), None, Reader())  # type: ignore[arg-type]
    with pytest.raises(RecipeError, match="got a QuantizationConfig"):
        ModelQuantizer(get_default_config("XINT8")).quantize_model(cnn(), None, Reader(), algorithms=[CLEConfig()])


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"exclude": ["none"]}, "^QConfig.exclude must"),
        ({"exclude": [("none", "Gemm_12")]}, r"^QConfig.exclude\.starts must"),
        ({"layer_type_config": {None: ["Gru"]}}, r"^QConfig.layer_type_config\[None\] must"),
    ],
)
def test_selection_error_names_the_field_of_the_layer_configuration(settings: dict[str, Any], named: str) -> None:
    config = QConfig(INT8.global_config, **settings)
    with pytest.raises(SelectionError, match=named):
        ModelQuantizer(config).quantize_model(cnn(), None, Reader())
