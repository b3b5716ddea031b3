"""The live page in a real browser: it grows, and its buttons pause, resume and stop a real search."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest
from test_browser_report import MODEL, scheme, size, wait

from quantry.report import LiveServer

SEARCH = """
import time, numpy as np, quantry
from quantry.recipe import Percentile

def score(path):
    time.sleep(0.1)
    return path.stat().st_size % 97

if __name__ == "__main__":
    data = np.load("data.npy")
    space = {"scale.activation": [Percentile(50 + n / 10) for n in range(400)]}
    options = dict(output_dir="out", store="kept", sampler="random")
    quantry.search("m.onnx", data[:, None], evaluator=score, space=space, **options)
"""


@pytest.fixture
def running(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    onnx.save(onnx.parser.parse_model(MODEL), tmp_path / "m.onnx")
    np.save(tmp_path / "data.npy", np.random.default_rng(0).normal(size=(4, 3, 6, 6)).astype(np.float32))
    (tmp_path / "run.py").write_text(SEARCH)
    (tmp_path / "out").mkdir()
    with subprocess.Popen([sys.executable, "run.py"], cwd=tmp_path, stderr=subprocess.PIPE) as process:
        yield process
        process.kill()


def test_page_grows_and_its_buttons_work(browser: Any, running: subprocess.Popen[bytes], tmp_path: Path) -> None:
    server = LiveServer(tmp_path / "out")
    server.start()
    size(browser, 1200)
    scheme(browser, "light")
    browser.get(server.address)
    rows = "return document.querySelectorAll('#main tbody tr').length"
    state = "return document.getElementById('live-state').innerText"

    def count() -> int:
        return int(browser.execute_script(rows))

    try:
        wait(lambda: count() >= 2, 60)
        grown = wait(lambda: count() if count() > 4 else 0, 30)
        assert browser.execute_script("return document.querySelectorAll('#pareto svg path').length") > 3
        size(browser, 380)
        assert browser.execute_script("return document.documentElement.scrollWidth") == 380
        size(browser, 1200)
        browser.find_element("id", "live-pause").click()
        wait(lambda: "paused" in browser.execute_script(state))
        time.sleep(2.5)  # the file of the search is written every two seconds
        paused = json.loads((tmp_path / "out" / "search.json").read_text())
        time.sleep(1.0)
        assert json.loads((tmp_path / "out" / "search.json").read_text()) == paused
        browser.find_element("id", "live-run").click()
        wait(lambda: count() > max(grown, len(paused["trials"])), 30)
        browser.find_element("id", "live-stop").click()
        assert running.wait(30) == 0
        wait(lambda: browser.execute_script(state) == "finished")
        assert "stopped on request" in browser.execute_script("return document.getElementById('below').innerText")
        assert [entry["message"] for entry in browser.get_log("browser") if "favicon" not in entry["message"]] == []
    finally:
        server.close()
