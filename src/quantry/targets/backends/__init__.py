"""Backends: libraries that run models with the arithmetic of a target."""

from quantry.targets.backends.backend import Backend, PlacedNode, Runner
from quantry.targets.backends.openvino import OpenVino
from quantry.targets.backends.ort_cpu import OrtCpu
from quantry.targets.backends.ort_web import OrtWeb
from quantry.targets.backends.qnn import Qnn

BACKENDS: dict[str, Backend] = {backend.name: backend for backend in (OrtCpu(), Qnn(), OpenVino(), OrtWeb())}
"""The built-in backends by name."""

__all__ = ["BACKENDS", "Backend", "OpenVino", "OrtCpu", "OrtWeb", "PlacedNode", "Qnn", "Runner"]
