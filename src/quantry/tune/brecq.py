"""Block reconstruction: Li et al., "BRECQ" (https://arxiv.org/abs/2102.05426), with weights trained through rounding.

This module imports torch, so it is imported inside functions only.
"""

from quantry.recipe import Brecq
from quantry.tune.blockwise import BlockTrainer
from quantry.tune.task import TuneTask
from quantry.tune.tuned import Tuned


def run(task: TuneTask, step: Brecq) -> Tuned:
    """Train weights and biases block by block.

    Args:
        task: What is tuned.
        step: The options.
    """
    return BlockTrainer(task, step, "brecq", scales=False).run()
