"""`auto`: finds a recipe for a target by itself, without labels, and fixes what the diagnosis finds.

It is a search with a small, adaptive space::

    run.py            `quantize`, whose default recipe is "auto", and its result
    effort.py         how much work is allowed
    candidates.py     what is tried: fixes from the diagnosis, rows of the table of variants, tuning
    training.py       training without labels, as much as fits into the time
    trials.py         runs a trial in the search engine: quantizes on one half of the samples, compares on the other
    recipe_search.py  the order of trials; `quantry.evaluate.paired` decides what is kept
    speed.py          speed on the target, as a limit of what may stay in float
    fixing.py         `fix`: the same for an existing result, with the gain of every fix
    summary.py        the steps with their gains, and what further gain would need
"""

from quantry.auto.effort import EFFORTS, Effort, find_effort
from quantry.auto.fixing import FixResult, fix
from quantry.auto.recipe_search import AutoReport, RecipeSearch
from quantry.auto.run import AUTO, AutoInputs, AutoResult, is_auto, quantize, quantize_auto, require_auto
from quantry.auto.summary import AutoFacts, auto_facts, final_quality, further_gain, step_text, summary_lines
from quantry.auto.trials import StepRecord

__all__ = [
    "AUTO",
    "EFFORTS",
    "AutoFacts",
    "AutoInputs",
    "AutoReport",
    "AutoResult",
    "Effort",
    "FixResult",
    "RecipeSearch",
    "StepRecord",
    "auto_facts",
    "final_quality",
    "find_effort",
    "fix",
    "further_gain",
    "is_auto",
    "quantize",
    "quantize_auto",
    "require_auto",
    "step_text",
    "summary_lines",
]
