"""Computes ONNX operators in torch; training, tuning on a GPU and torch modules all run graphs with it.

To add an operator, name its function in the ``torch`` column of `quantry.facts.operators`: a function of torch if there
is one that takes the same inputs, else a function that you write in the file of its family here. A function takes the
node's tensors in order and its attributes and settings (axes, sizes, bounds) as keyword arguments with their ONNX
names. An attribute that no parameter accepts makes the node not interpretable, so a mode is refused rather than
computed differently. ``tests/execute/test_execute_operators.py`` compares every operator with onnxruntime.

This package imports torch, so import it inside functions only.
"""

from quantry.execute.interpreter.torch_call import SEVERAL_RESULTS, TorchCall, interpretable, torch_call

__all__ = ["SEVERAL_RESULTS", "TorchCall", "interpretable", "torch_call"]
