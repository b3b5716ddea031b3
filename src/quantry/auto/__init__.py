"""`auto`: finds a recipe for a target by itself, without labels, and fixes what the diagnosis finds.

It is a search with a small, adaptive space::

    run.py         `quantize`, whose default recipe is "auto", and its result
    effort.py      how much work is allowed
    proposals.py   what is tried: the recommended recipe, simpler variants, fixes from the diagnosis, tuning
    training.py    training without labels, as much as fits into the time
    trials.py      runs a trial in the search engine: quantizes on one half of the samples, compares on the other
    gain.py        the paired test that decides what is kept
    loop.py        the order of trials
    fixing.py      `fix`: the same for an existing result, with the gain of every fix
    summary.py     the steps with their gains, and what further gain would need
"""

from quantry.auto.effort import EFFORTS, Effort, find_effort
from quantry.auto.fixing import Fixed, fix
from quantry.auto.gain import Gain, is_good
from quantry.auto.loop import Loop, Outcome
from quantry.auto.run import AUTO, AutoInputs, AutoResult, is_auto, quantize, quantize_auto, require_auto
from quantry.auto.summary import (
    OutcomeFacts,
    further_gain,
    held_out_quality,
    outcome_facts,
    step_text,
    summary_lines,
)
from quantry.auto.trials import Tried

__all__ = [
    "AUTO",
    "EFFORTS",
    "AutoInputs",
    "AutoResult",
    "Effort",
    "Fixed",
    "Gain",
    "Loop",
    "Outcome",
    "OutcomeFacts",
    "Tried",
    "find_effort",
    "fix",
    "further_gain",
    "held_out_quality",
    "is_auto",
    "is_good",
    "outcome_facts",
    "quantize",
    "quantize_auto",
    "require_auto",
    "step_text",
    "summary_lines",
]
