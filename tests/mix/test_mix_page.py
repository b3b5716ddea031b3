"""The recipes of docs/mixed_precision.md can be read."""

import re
from pathlib import Path

import quantry
from quantry.recipe import TensorShare, from_yaml

PAGE = Path(quantry.__file__).parents[2] / "docs" / "mixed_precision.md"


def test_recipes_of_the_page_can_be_read() -> None:
    first, second = (from_yaml(text) for text in re.findall(r"```yaml\n(.*?)```", PAGE.read_text(), re.DOTALL))
    assert [entry.operators for entry in first.plan.layers] == [(), ("Softmax",)]
    assert second.mix.mixed is not None
    assert second.mix.mixed.goal == TensorShare(0.25)
