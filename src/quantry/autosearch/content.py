"""What a quantized model is made of, known before it is written."""

from dataclasses import dataclass, field, replace

from quantry.emit import emit
from quantry.graph.quant_plan import QuantPlan
from quantry.memo import Digest, Handle, fingerprint
from quantry.numerics.tensor_params import QuantParams
from quantry.pipeline import Stages
from quantry.recipe import EmitOptions


@dataclass
class ContentBook:
    """Says which models are the same before they are written.

    Notes count for nothing: of two methods one may have found at once what a rule of the target made of the other's
    result, which leaves a note. What a result is without its notes is written down here, so that it is read once.
    """

    _without_notes: dict[Digest, Digest] = field(default_factory=dict)

    def content(self, stages: Stages, options: EmitOptions) -> str:
        """Return a digest of all that a model's bytes follow from, apart from its metadata.

        Two trials with the same write the same graph and the same weights.

        Args:
            stages: How the model comes about.
            options: In which format it is written.
        """
        made_of = (stages.written, self._bare(stages.plan), self._bare(stages.params), options)
        return str(fingerprint((emit.name, emit.version, *made_of)))

    def _bare(self, made: Handle[QuantPlan] | Handle[QuantParams]) -> Digest:
        if made.digest not in self._without_notes:
            bare = fingerprint(replace(made.value, notes=())) if made.value.notes else made.digest
            self._without_notes[made.digest] = bare
        return self._without_notes[made.digest]
