"""Built-in targets: names, what they accept, and the default."""

from pathlib import Path

import pytest

from quantry.errors import RecipeError
from quantry.recipe import PRESETS
from quantry.targets import TARGETS, Target, default_target, find_target


def test_built_in_targets_have_rules_with_source_and_consequence() -> None:
    assert {"vitisai", "qnn-htp", "openvino-cpu", "openvino-npu", "ort-cpu", "tensorrt", "ort-web", "stm32n6"} <= {
        *TARGETS
    }
    for target in TARGETS.values():
        assert target.summary
        for rule in target.rules:
            assert rule.source, (target.name, rule.name)
            assert rule.consequence, (target.name, rule.name)
            assert rule.text, (target.name, rule.name)


@pytest.mark.parametrize("target", TARGETS.values(), ids=lambda target: target.name)
def test_recommended_presets_are_accepted(target: Target) -> None:
    assert target.recommended
    assert set(target.recommended) <= set(target.presets)


def test_presets_are_ordered_by_cost() -> None:
    presets = find_target("ort-cpu").presets
    assert set(presets) == set(PRESETS)
    assert presets.index("XINT8") < presets.index("XINT8_ADAROUND") < presets.index("A16W8")


@pytest.mark.parametrize(
    ("target", "preset", "reason"),
    [
        ("vitisai", "CPU_INT8", "power of two"),
        ("vitisai", "RECOMMENDED-NPU-MIXED", "int16"),
        ("qnn-htp", "A16W8", "int16, allowed for activations: uint8 or int8 or uint16"),
        ("tensorrt", "CPU_INT8", "uint8"),
        ("tensorrt", "A8W8", "int32, allowed for biases: float"),
        ("stm32n6", "MATMUL_NBITS", "MatMulNBits"),
        ("openvino-npu", "U16S8_AAWS", "uint16"),
    ],
)
def test_conflicts_say_why_a_preset_does_not_suit(target: str, preset: str, reason: str) -> None:
    conflicts = find_target(target).conflicts(PRESETS[preset].recipe)
    assert any(reason in conflict for conflict in conflicts)
    assert preset not in find_target(target).presets


def test_default_target_follows_the_scales() -> None:
    assert default_target().name == "ort-cpu"
    assert default_target(PRESETS["XINT8"].recipe).name == "vitisai"
    assert default_target(PRESETS["CPU_INT8"].recipe).name == "ort-cpu"


def test_misspelt_target_gets_the_nearest_name() -> None:
    with pytest.raises(RecipeError, match="did you mean 'qnn-htp'"):
        find_target("qnn_htp")
    assert find_target("VITISAI").name == "vitisai"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("a.yaml", "name: a\nsummary: b\nrecommended: CPU_INT8\n", "recommended of a target must be a list"),
        ("a.py", "import missing_module_of_a_user\n", "a target file must run, got ModuleNotFoundError"),
    ],
)
def test_mistakes_in_a_users_file_are_named_with_the_file(name: str, text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=f"{message}.*{name}"):
        find_target(str(tmp_path / name))
