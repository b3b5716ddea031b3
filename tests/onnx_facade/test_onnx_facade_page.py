from pathlib import Path

from quantry.onnx.options.page import options_page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "options.md"


def test_page_is_what_the_table_says() -> None:
    assert PAGE.read_text() == options_page()
