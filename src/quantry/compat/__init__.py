"""Runs scripts written for ``quark.onnx``, ``quark.torch`` or ``vai_q_onnx`` unchanged, with ours in their place."""

from quantry.compat.import_hook import mapped_imports
from quantry.compat.run import run_script
from quantry.compat.scan import Missing, scan_script

__all__ = ["Missing", "mapped_imports", "run_script", "scan_script"]
