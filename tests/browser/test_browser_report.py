"""The pages of reports in a real browser: charts, hover, keyboard, filter, contrast, phone."""

import dataclasses
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx.parser
import pytest

import quantry
from quantry.autosearch import search
from quantry.diagnosis import PairDiagnosis, diagnose_pair
from quantry.recipe import MinMax, MinMSE
from quantry.report import write_pair_report, write_report, write_search_report

MODEL = """
<ir_version: 8, opset_import: ["": 17]>
small (float[1, 3, 6, 6] x) => (float[1, 3] y)
<float[3, 3, 1, 1] weight = {1.5, -0.5, 0.25, 2, 1, 0.1, 0.7, -1, 0.3}>
{ c = Conv(x, weight)  r = Relu(c)  p = GlobalAveragePool(r)  y = Flatten(p) }
"""


def samples(count: int) -> list[Any]:
    return [np.random.default_rng(seed).standard_normal((1, 3, 6, 6)).astype(np.float32) for seed in range(count)]


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    space = {"scale.activation": [MinMax(), MinMSE()], "scale.reduce_range": [False, True]}
    options = {"output_dir": folder / "out", "objectives": ["accuracy", "size"]}
    found = search(onnx.parser.parse_model(MODEL), samples(6), space=space, **options)
    result = quantry.quantize(onnx.parser.parse_model(MODEL), samples(3), "XINT8", store=None)
    return {
        "search": write_search_report(found, folder / "search.html", "small.onnx"),
        "model": write_report(result, folder / "model.html", "small.onnx"),
        "pair": write_pair_report(_compared(result), folder / "pair.html", "small.onnx and small.int8.onnx"),
    }


def _compared(result: quantry.QuantizationResult) -> PairDiagnosis:
    feeds = [{"x": sample} for sample in samples(3)]
    return diagnose_pair(onnx.parser.parse_model(MODEL), onnx.load_from_string(result.to_bytes()), feeds)


def size(browser: Any, width: int, height: int = 900) -> None:
    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600},
    )


def scheme(browser: Any, name: str) -> None:
    features = [{"name": "prefers-color-scheme", "value": name}, {"name": "prefers-reduced-motion", "value": "reduce"}]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def wait(condition: Callable[[], Any], seconds: float = 10.0) -> Any:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = condition()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("the page did not get there in time")


def opened(browser: Any, page: Path, width: int = 1200, colours: str = "light") -> Any:
    size(browser, width)
    scheme(browser, colours)
    browser.get(page.as_uri())
    wait(lambda: browser.execute_script("return document.body.dataset.ready") == "yes")
    return browser


def script(browser: Any, code: str, *arguments: Any) -> Any:
    return browser.execute_script(code, *arguments)


@pytest.mark.parametrize("name", ["search", "model", "pair"])
def test_charts_are_drawn_without_errors(name: str, browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages[name])
    marks = "return [...document.querySelectorAll('.chart')].map((box) => box.querySelectorAll('svg path').length)"
    assert wait(lambda: min(script(browser, marks)) > 3)
    assert [entry["message"] for entry in browser.get_log("browser")] == []
    loaded = script(browser, "return performance.getEntriesByType('resource').length")
    assert loaded == 0, "a report needs nothing from the network"


def test_hover_shows_the_trial_and_a_click_finds_its_row(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver import ActionChains

    opened(browser, pages["search"])
    script(browser, "document.getElementById('pareto').scrollIntoView({block: 'center', behavior: 'instant'})")
    place = """
    const trial = quantry.facts().searches[0].trials[1];
    const one = echarts.getInstanceByDom(document.getElementById('pareto'));
    const box = document.getElementById('pareto').getBoundingClientRect();
    const at = one.convertToPixel('grid', [trial.objectives.size, trial.score]);
    return [Math.round(box.left + at[0]), Math.round(box.top + at[1])];
    """
    x, y = script(browser, place)
    mouse = ActionChains(browser)
    mouse.w3c_actions.pointer_action.move_to_location(x - 3, y)
    mouse.w3c_actions.pointer_action.move_to_location(x, y)
    mouse.perform()
    assert wait(lambda: "trial" in script(browser, "return document.getElementById('pareto').innerText"))
    press = ActionChains(browser)
    press.w3c_actions.pointer_action.move_to_location(x, y)
    press.w3c_actions.pointer_action.click()
    press.perform()
    chosen = wait(lambda: script(browser, "return document.querySelector('tr.chosen')?.id"))
    assert chosen.startswith("trial-")


def test_table_sorts_and_filters_by_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    from selenium.webdriver import Keys

    opened(browser, pages["search"])
    heading = script(browser, "return document.querySelector('#main th button')")
    script(browser, "arguments[0].focus()", heading)
    numbers = (
        "return [...document.querySelectorAll('#main tbody tr')].filter((row) => !row.hidden)"
        ".map((row) => +row.cells[0].innerText)"
    )
    heading.send_keys(Keys.ENTER)
    assert script(browser, numbers) == [0, 1, 2, 3]
    heading.send_keys(Keys.ENTER)
    assert script(browser, numbers) == [3, 2, 1, 0]
    assert script(browser, "return arguments[0].parentElement.getAttribute('aria-sort')", heading) == "descending"
    box = script(browser, "return document.getElementById('filter')")
    box.send_keys("MinMSE True")
    assert len(script(browser, numbers)) == 1
    assert script(browser, "return document.getElementById('main-count').innerText") == "1 of 4"


def test_recipes_of_two_trials_are_compared(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["search"])
    choose = """
    const second = document.getElementById('second-recipe');
    document.getElementById('first-recipe').value = '0';
    second.value = arguments[0]; second.dispatchEvent(new Event('change'));
    return document.querySelector('#recipe-diff tbody').innerText;
    """
    assert "equal" in script(browser, choose, "0")
    texts = [script(browser, choose, str(number)) for number in (1, 2, 3)]
    assert any("scale.activation" in text and "scale.reduce_range" in text for text in texts)


def test_histogram_follows_the_chosen_tensor(browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages["model"])
    choose = """
    const picker = document.getElementById('tensor');
    picker.value = arguments[0]; picker.dispatchEvent(new Event('change'));
    return document.getElementById('tensor-facts').innerText;
    """
    assert script(browser, choose, "weight").startswith("weight int8; values -1 to 2")
    assert "activation" in script(browser, choose, "x")


@pytest.mark.parametrize("name", ["search", "model", "pair"])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_phone_needs_no_sideways_scrolling(name: str, colours: str, browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages[name], width=380, colours=colours)
    width, inner = script(browser, "return [document.documentElement.scrollWidth, innerWidth]")
    assert width == inner == 380


@pytest.mark.parametrize("name", ["search", "model", "pair"])
def test_print_is_black_on_white_without_controls(name: str, browser: Any, pages: dict[str, Path]) -> None:
    opened(browser, pages[name], width=760, colours="dark")
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    try:
        shown = "return [...document.querySelectorAll('.controls, nav.parts')].filter((one) => one.offsetParent).length"
        assert script(browser, shown) == 0
        style = "const one = getComputedStyle(document.body); return [one.color, one.backgroundColor]"
        assert script(browser, style) == ["rgb(0, 0, 0)", "rgb(255, 255, 255)"]
        assert script(browser, "return document.documentElement.scrollWidth <= innerWidth")
    finally:
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.parametrize("name", ["search", "model", "pair"])
@pytest.mark.parametrize("colours", ["light", "dark"])
def test_axe_finds_no_violation(name: str, colours: str, browser: Any, pages: dict[str, Path], axe: str) -> None:
    opened(browser, pages[name], colours=colours)
    script(browser, axe)
    run = (
        "const done = arguments[0]; const first = (rule) => [rule.id, rule.nodes[0].html.slice(0, 300)];"
        "axe.run(document).then((found) => done(found.violations.map(first)))"
    )
    assert browser.execute_async_script(run) == []


def test_page_of_500_trials_is_small_and_quick(browser: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    from quantry.report.search_facts import read_facts
    from quantry.report.search_page import render_search_facts

    few = read_facts(pages["search"].parent / "out")
    trials = tuple({**few.trials[number % 4], "number": number, "at": float(number)} for number in range(500))
    page = tmp_path / "many.html"
    page.write_text(render_search_facts((dataclasses.replace(few, trials=trials),), None), encoding="utf-8")
    assert page.stat().st_size < 2_000_000
    started = time.monotonic()
    opened(browser, page)
    assert time.monotonic() - started < 15
    # The table scrolls by itself, so that what comes after it stays in reach.
    assert script(browser, "return document.documentElement.scrollHeight") < 9000
    box = "const box = document.getElementById('main').parentElement;"
    assert script(browser, box + "return box.scrollHeight > 10 * box.clientHeight")
    heading = (
        "box.scrollTop = 5000; const head = document.querySelector('#main th');"
        "return head.getBoundingClientRect().top - box.getBoundingClientRect().top"
    )
    assert abs(script(browser, box + heading)) < 2
