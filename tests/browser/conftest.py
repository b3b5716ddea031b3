"""A real browser: Debian's Chromium, driven by selenium. Tests skip, and say why, where it is not installed."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
)


def missing() -> str | None:
    """Return what is missing to run a browser; None if nothing is."""
    for program in ("chromium", "chromedriver"):
        if shutil.which(program) is None:
            return f"{program} is not installed; `make test-browser` installs it"
    try:
        import selenium  # noqa: F401
    except ImportError:
        return "selenium is not installed; `make test-browser` installs it"
    return None


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    reason = missing()
    if reason is not None:
        sys.stderr.write(f"\nBROWSER TESTS ARE SKIPPED: {reason}\n")
        pytest.skip(reason)
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def axe() -> str:
    """The source of axe-core, which `make test-browser` installs from npm."""
    file = Path(os.environ.get("QUANTRY_AXE", ROOT / ".venv" / "browser" / "node_modules" / "axe-core" / "axe.min.js"))
    if not file.is_file():
        reason = f"axe-core is not installed at {file}; `make test-browser` installs it"
        sys.stderr.write(f"\nACCESSIBILITY TESTS ARE SKIPPED: {reason}\n")
        pytest.skip(reason)
    return file.read_text(encoding="utf-8")
