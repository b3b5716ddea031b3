from pathlib import Path

from quantry.onnx.options.page import options_page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "options.md"


def test_page_equals_the_table() -> None:
    assert PAGE.read_text() == options_page()
