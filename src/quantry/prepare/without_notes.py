"""What later stages read of a float model."""

from quantry.graph.float_model import BareModel, FloatModel
from quantry.memo import Handle, Memo, stage


@stage(name="bare", version=1)
def _bare(model: FloatModel) -> FloatModel:
    return BareModel.of(model)


def without_notes(model: Handle[FloatModel], memo: Memo) -> Handle[FloatModel]:
    """Return a model without its notes: two with the same graph are then the same to all stages behind.

    It is a stage call, so that the digest of a model that is known is known without reading the model; but no work that
    a trace should show.

    Args:
        model: The model.
        memo: Keeps and finds results.
    """
    return Memo(memo.store, verify_inputs=memo.verify_inputs).run(_bare, model)
