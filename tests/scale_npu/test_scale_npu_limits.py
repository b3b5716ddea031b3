"""The bounds of every limit, at their ends, and the moves that restore them."""

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from quantry.recipe import NpuLimits
from quantry.scale.npu import LIMITS, ShiftViolation, Unit

BY_NAME = {limit.name: limit for limit in LIMITS}
POSITION = st.integers(-20, 30)


def find(name: str, unit: Unit, **positions: int) -> ShiftViolation | None:
    return BY_NAME[name].find(unit, positions)


CONV = Unit("c", "Conv", ("i",), "o", weight="w", bias="b")
ADD = Unit("a", "Add", ("i", "j"), "o")
MUL = Unit("m", "Mul", ("i", "j"), "o")
SWISH = Unit("s", "Mul", ("i", "j"), "o", swish=True)
GATE = Unit("h", "HardSigmoid", ("i",), "o")


def test_limits_have_the_order_and_the_names_of_their_switches() -> None:
    switches = [name for name in NpuLimits.__dataclass_fields__ if name != "max_rounds"]
    assert [limit.name for limit in LIMITS] == switches


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("align_concat", "Concat"),
        ("align_pool", "MaxPool"),
        ("align_pool", "AveragePool"),
        ("align_pool", "GlobalAveragePool"),
        ("align_pad", "Pad"),
        ("align_slice", "Slice"),
    ],
)
def test_aligned_tensors_take_the_smallest_position(name: str, operator: str) -> None:
    finding = find(name, Unit("n", operator, ("i", "j"), "o"), i=5, j=3, o=4)
    assert finding is not None
    assert finding.moves == {"i": 3, "o": 3}
    assert find(name, Unit("n", operator, ("i", "j"), "o"), i=3, j=3, o=3) is None
    assert find(name, Unit("n", "Relu", ("i", "j"), "o"), i=5, j=3, o=4) is None


@pytest.mark.parametrize(("apart", "moves"), [(7, None), (8, {"i": 9}), (-8, {"j": 1})])
def test_shift_read_keeps_operands_of_a_sum_within_seven(apart: int, moves: dict[str, int] | None) -> None:
    for operator in ("Add", "Sub"):
        finding = find("shift_read", Unit("n", operator, ("i", "j"), "o"), i=2 + apart, j=2, o=0)
        assert (None if finding is None else finding.moves) == moves


@pytest.mark.parametrize(("result", "moves"), [(11, None), (12, {"o": 11}), (-21, None), (-22, {"i": 3})])
def test_shift_write_of_a_sum_is_from_minus_7_to_25(result: int, moves: dict[str, int] | None) -> None:
    finding = find("shift_write", ADD, i=4, j=6, o=result)
    assert (None if finding is None else finding.moves) == moves


@pytest.mark.parametrize(("result", "moves"), [(10, None), (11, {"o": 10}), (-22, None), (-23, {"j": 5})])
def test_shift_write_of_a_product_is_from_0_to_32(result: int, moves: dict[str, int] | None) -> None:
    finding = find("shift_write", MUL, i=4, j=6, o=result)
    assert (None if finding is None else finding.moves) == moves


@pytest.mark.parametrize(("result", "moves"), [(13, None), (14, {"o": 13}), (-3, None), (-4, {"w": 6})])
def test_shift_cut_is_from_0_to_16(result: int, moves: dict[str, int] | None) -> None:
    for operator in ("Conv", "Gemm"):
        finding = find("shift_cut", Unit("c", operator, ("i",), "o", "w", "b"), w=7, i=6, o=result)
        assert (None if finding is None else finding.moves) == moves


@pytest.mark.parametrize(
    ("bias", "result", "moves"),
    [
        (-2, 5, None),  # shift 15
        (-3, 5, {"w": 6}),  # shift 16
        (21, 5, None),  # cut 8, so the shift may be -8
        (22, 5, {"b": 21}),
        (13, -3, None),  # cut 16, so the shift may not be negative
        (14, -3, {"b": 13}),
    ],
)
def test_shift_bias_depends_on_the_cut(bias: int, result: int, moves: dict[str, int] | None) -> None:
    finding = find("shift_bias", CONV, w=7, i=6, b=bias, o=result)
    assert (None if finding is None else finding.moves) == moves


def test_shift_bias_is_not_negative_before_a_leaky_relu() -> None:
    leaky = Unit("c", "Conv", ("i",), "o", "w", "b", leaky=True)
    finding = find("shift_bias", leaky, w=7, i=6, b=14, o=5)
    assert finding is not None
    assert finding.moves == {"b": 13}


@pytest.mark.parametrize(
    ("data", "result", "moves"),
    [
        (0, 7, None),
        (15, 29, None),
        (-1, 7, {"i": 0}),
        (16, 29, {"i": 15}),
        (4, 6, {"o": 7}),
        (4, 19, {"o": 18}),
        (-2, 20, {"i": 0, "o": 14}),
    ],
)
def test_hard_sigmoid_reads_and_writes_its_positions(data: int, result: int, moves: dict[str, int] | None) -> None:
    finding = find("hard_sigmoid", GATE, i=data, o=result)
    assert (None if finding is None else finding.moves) == moves


@pytest.mark.parametrize(("result", "moves"), [(12, None), (13, {"o": 12}), (-3, None), (-4, {"i": 4})])
def test_swish_is_from_0_to_15(result: int, moves: dict[str, int] | None) -> None:
    finding = find("swish", SWISH, i=5, j=7, o=result)
    assert (None if finding is None else finding.moves) == moves
    assert find("swish", MUL, i=5, j=7, o=result) is None


@given(
    st.sampled_from([CONV, ADD, MUL, SWISH, GATE, Unit("q", "Mul", ("i", "i"), "o"), Unit("n", "Concat", ("i",), "o")]),
    st.fixed_dictionaries(dict.fromkeys("ijowb", POSITION)),
)
def test_moves_of_a_finding_make_its_limit_hold(unit: Unit, positions: Mapping[str, int]) -> None:
    for limit in LIMITS:
        finding = limit.find(unit, positions)
        if finding is not None:
            assert finding.moves
            assert limit.find(unit, {**positions, **finding.moves}) is None


@given(st.fixed_dictionaries(dict.fromkeys("ijowb", POSITION)))
def test_no_move_makes_a_tensor_finer_except_at_hard_sigmoid(positions: Mapping[str, int]) -> None:
    for limit in LIMITS:
        for unit in (CONV, ADD, MUL, SWISH, Unit("n", "Concat", ("i", "j"), "o")):
            finding = limit.find(unit, positions)
            for tensor, move in ({} if finding is None else finding.moves).items():
                assert move < positions[tensor]


def test_units_without_quantized_result_or_weight_are_not_limited() -> None:
    for limit in LIMITS:
        for operator in ("Conv", "Add", "Mul", "Concat", "HardSigmoid", "MaxPool"):
            assert limit.find(Unit("n", operator, (), None), {}) is None
