"""Starts the sweep in the environment of the libraries: ``python -m benchmarks.zoo --only 'timm/*'``."""

import os
import subprocess
import sys

from benchmarks.locations import ROOT, NotAvailable
from benchmarks.zoo.environment import zoo_environment, zoo_python
from benchmarks.zoo.sweep import options


def main() -> int:
    """Make the environment where it is missing, run the sweep there, and return its exit status."""
    options().parse_args()
    try:
        python = zoo_python()
    except NotAvailable as reason:
        print(reason)
        return 2
    settings = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "YOLO_CONFIG_DIR": str(zoo_environment() / "ultralytics"),
        "HF_HUB_OFFLINE": "1",
    }
    return subprocess.run(
        [str(python), "-m", "benchmarks.zoo.sweep", *sys.argv[1:]], env=settings, check=False
    ).returncode


if __name__ == "__main__":
    sys.exit(main())
