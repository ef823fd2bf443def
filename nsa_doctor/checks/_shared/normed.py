"""What checks of a run's gradient norms have in common: the norms and the losses beside them."""

from nsa_doctor.artifacts.training_run.record import RunRecord
from nsa_doctor.artifacts.training_run.trends import Series, series, timeline
from nsa_doctor.core.errors import NotApplicableError


def norms_and_losses(record: RunRecord, *, fewest: int) -> tuple[Series, Series]:
    """Both by step; raises NotApplicableError where the run tells fewer norms."""
    beats = timeline(record)
    norms = series(beats, "grad_norm")
    if not norms:
        raise NotApplicableError("the run logs no gradient norm")
    if len(norms) < fewest:
        raise NotApplicableError(f"the gradient norm is logged {len(norms)} times; {fewest} are needed")
    return norms, series(beats, "loss")
