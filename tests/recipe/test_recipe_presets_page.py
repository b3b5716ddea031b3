from pathlib import Path

from quantry.recipe import PRESETS

PAGE = Path(__file__).parents[2] / "docs" / "presets.md"


def test_page_lists_every_preset_with_summary_and_pending_features() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    expected = [f"| {name} | {preset.summary} | {'; '.join(preset.pending)} |" for name, preset in PRESETS.items()]
    assert rows == expected
