"""Runs unchanged scripts for ``quark.onnx``, ``quark.torch`` and ``vai_q_onnx`` on quantry."""

from quantry.compat.run import mapped_imports, run_module, run_script
from quantry.compat.scan import Missing, scan_script

__all__ = ["Missing", "mapped_imports", "run_module", "run_script", "scan_script"]
