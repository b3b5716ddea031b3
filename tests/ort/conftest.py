"""Makes the facades' small models importable."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "onnx_facade"))
