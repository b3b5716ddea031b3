"""Makes the virtual environment of the libraries whose architectures are quantized, outside the project's own.

Run: python -m benchmarks.zoo.environment
"""

import os
import subprocess
import sys
from pathlib import Path

from benchmarks.locations import ROOT, NotAvailable, user_cache

TORCH = "torch==2.13.0"
OURS = (
    *("ml-dtypes", "numpy", "onnx", "onnx-ir", "onnxruntime", "optuna", "pillow", "pyyaml", "rich", "safetensors"),
    *("typer", "onnxscript", "scipy", "sympy"),
)
"""What quantry and onnxruntime's quantizer need; constraints.txt has the versions."""

# torchvision and what depends on it would replace torch by a build with gigabytes of GPU libraries.
WITHOUT_DEPENDENCIES = ("torchvision==0.29.2", "timm==1.0.30", "ultralytics==8.4.190", "ultralytics-thop==2.2.3")
OTHERS = ("transformers==5.22.2", "opencv-python-headless", "matplotlib", "requests", "psutil", "polars")

_STAMP = "quantry-zoo-requirements.txt"


def zoo_environment() -> Path:
    """Return the folder of the environment: ``$QUANTRY_ZOO_VENV`` or one in the user's cache."""
    configured = os.environ.get("QUANTRY_ZOO_VENV")
    return Path(configured) if configured else user_cache() / "quantry-zoo" / "venv"


def zoo_python() -> Path:
    """Return the interpreter, after making the environment where it is missing or of other versions.

    Raises:
        NotAvailable: The environment cannot be made.
    """
    folder = zoo_environment()
    python = folder / "bin" / "python"
    wanted = "\n".join((TORCH, *OURS, *WITHOUT_DEPENDENCIES, *OTHERS))
    stamp = folder / _STAMP
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"Preparing the environment of the libraries in {folder} (about 2 GB, once) ...", flush=True)
    _run(sys.executable, "-m", "venv", str(folder))
    pinned = ("-c", str(ROOT / "constraints.txt"))
    for requirements in (
        (TORCH,),
        (*pinned, *OURS),
        ("--no-deps", *WITHOUT_DEPENDENCIES),
        (*pinned, TORCH, *OTHERS),
    ):
        _run(str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements)
    stamp.write_text(wanted)
    return python


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise NotAvailable(f"the zoo's environment is not available: {' '.join(command[1:4])} failed: {last}")


if __name__ == "__main__":
    print(zoo_python())
