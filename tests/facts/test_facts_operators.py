"""The table of operator facts: rows agree with the ONNX standard, with the numpy formulas and with each other."""

import ast
from pathlib import Path

import onnx.defs
import pytest
from onnxruntime.capi import onnxruntime_pybind11_state

import quantry
from quantry.facts.operators import FUSIBLE, LINEAR, OPERATORS, Copies, Family, Operator, operators_where
from quantry.numerics.scalar_function import OPERATORS as FORMULAS
from quantry.plan.rules import RULE_OF_OPERATOR

SOURCE = Path(quantry.__file__).parent
SCHEMAS = {schema.name: schema for schema in onnx.defs.get_all_schemas()}
RUNTIME_ONLY = {schema.name for schema in onnxruntime_pybind11_state.get_all_operator_schema()}


@pytest.mark.parametrize("row", OPERATORS.values(), ids=lambda row: row.name)
def test_row_names_an_operator_of_the_standard_or_of_onnxruntime(row: Operator) -> None:
    assert row.name in SCHEMAS or row.name in RUNTIME_ONLY


@pytest.mark.parametrize("name", operators_where(lambda row: row.settings))
def test_settings_are_the_inputs_after_the_data(name: str) -> None:
    row = OPERATORS[name]
    inputs = SCHEMAS[name].inputs
    assert row.data_inputs + len(row.settings) <= len(inputs)
    assert all(inputs[index].name for index in row.setting_at)


def test_scalar_rows_and_numpy_formulas_are_the_same_operators() -> None:
    # The tanh approximation of Gelu is an attribute in ONNX and a formula of its own in numpy.
    assert set(operators_where(lambda row: row.scalar)) == set(FORMULAS) - {"GeluTanh"}


@pytest.mark.parametrize("name", operators_where(lambda row: row.scalar))
def test_parameters_of_scalar_functions_are_attributes_with_the_defaults_of_the_standard(name: str) -> None:
    scalar = OPERATORS[name].scalar
    assert scalar is not None
    for parameter, default in scalar.parameters:
        assert onnx.helper.get_attribute_value(SCHEMAS[name].attributes[parameter].default_value) == pytest.approx(
            default
        )


def test_linear_operators_are_those_with_weights() -> None:
    assert LINEAR == ("Conv", "ConvTranspose", "Gemm", "MatMul")


def test_fusible_activations_have_one_computed_input() -> None:
    assert all(OPERATORS[name].family is Family.ACTIVATION for name in FUSIBLE)


def test_copies_of_values_have_rules_that_share_the_scale() -> None:
    copying = operators_where(lambda row: row.copies in (Copies.EACH_ONCE, Copies.SOME))
    assert all(name in RULE_OF_OPERATOR for name in copying)


def test_linear_operators_are_listed_nowhere_else() -> None:
    def listed(tree: ast.AST) -> bool:
        for node in ast.walk(tree):
            if isinstance(node, ast.Tuple | ast.List | ast.Set):
                names = {part.value for part in node.elts if isinstance(part, ast.Constant)}
                if {"Conv", "Gemm", "MatMul"} <= names:
                    return True
        return False

    others = [
        path for path in SOURCE.rglob("*.py") if path.name != "operators.py" and listed(ast.parse(path.read_text()))
    ]
    assert not others
