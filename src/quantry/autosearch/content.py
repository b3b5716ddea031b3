"""What a quantized model is made of, known before it is written."""

from dataclasses import replace

from quantry.emit import emit
from quantry.memo import Digest, Handle, fingerprint
from quantry.pipeline import Stages
from quantry.plan import QuantPlan
from quantry.recipe import EmitOptions
from quantry.scale import QuantParams


def quantized_content(stages: Stages, options: EmitOptions) -> str:
    """Return a digest of all that a model's bytes follow from, apart from its metadata.

    Two trials with the same write the same graph and the same weights. Notes count for nothing: of two methods one may
    have found at once what a rule of the target made of the other's result, which leaves a note.

    Args:
        stages: How the model comes about.
        options: In which format it is written.
    """
    made_of = (stages.written, _without_notes(stages.plan), _without_notes(stages.params), options)
    return str(fingerprint((emit.name, emit.version, *made_of)))


def _without_notes(made: Handle[QuantPlan] | Handle[QuantParams]) -> Digest:
    return fingerprint(replace(made.value, notes=())) if made.value.notes else made.digest
