"""Takes the pictures of reports in docs/images with Chromium: python tools/pictures.py PAGE PICTURE HEIGHT.

For example, after ``quantry demo``:
``python tools/pictures.py demo-out/cpu/report.html docs/images/report-search.png 1290``
"""

import base64
import shutil
import sys
import tempfile
import time
from pathlib import Path

from selenium import webdriver

WIDTH = 1200
# Charts are drawn with an animation of a quarter of a second; a picture taken earlier shows empty charts.
DRAWN_SECONDS = 2.0


def main() -> None:
    """Take one picture of the top of a page."""
    page, picture, height = Path(sys.argv[1]).resolve(), Path(sys.argv[2]), int(sys.argv[3])
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    with tempfile.TemporaryDirectory() as profile:
        for flag in ("--headless=new", "--no-sandbox", "--hide-scrollbars", f"--user-data-dir={profile}"):
            options.add_argument(flag)
        driver = webdriver.Chrome(options, webdriver.ChromeService(shutil.which("chromedriver")))
        try:
            # The window is as high as the picture: what is below a window is not drawn.
            size = {"width": WIDTH, "height": height, "deviceScaleFactor": 1, "mobile": False}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            driver.get(page.as_uri())
            time.sleep(DRAWN_SECONDS)
            taken = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
        finally:
            driver.quit()
    picture.write_bytes(base64.b64decode(taken["data"]))
    print(f"{picture}: {picture.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
