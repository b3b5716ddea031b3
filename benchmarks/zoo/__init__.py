"""Quantizes more than a hundred architectures of other libraries and checks every result.

architectures.py     all of them, by name
from_torchvision.py  from_timm.py  from_transformers.py  from_ultralytics.py    how each is built
weights.py           random weights with the statistics of trained ones
subject.py           a module with samples
measurement.py       what is done with one architecture
onnx_results.py      quantize, load, run, compare with float
torch_results.py     the same through quantry.torchfront
processes.py         one process for each, with limits of time and memory
environment.py       the virtual environment of the libraries
summary.py           the table, and the targets
"""
