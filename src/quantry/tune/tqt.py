"""Trained quantization thresholds: Jain et al. (https://arxiv.org/abs/1903.08066), label-free and block by block.

This module imports torch, so it is imported inside functions only.
"""

from quantry.recipe import Tqt
from quantry.tune.blockwise import BlockTrainer
from quantry.tune.task import TuneTask
from quantry.tune.tuned import Tuned


def run(task: TuneTask, step: Tqt) -> Tuned:
    """Train weights, biases and log2 of scales block by block.

    Args:
        task: What is tuned.
        step: The options.
    """
    return BlockTrainer(task, step, "tqt", scales=True).run()
