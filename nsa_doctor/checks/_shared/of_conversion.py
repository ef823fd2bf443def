"""Whether a call departs from an equal one for no other reason than that its module was converted to float64."""

from collections.abc import Sequence

import torch

from nsa_doctor.checks._shared.earlier import Replays
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.call_history import Step
from nsa_doctor.probes.numerics.earlier_calls import Seen, differs_by, first_seen

_LET_PASS = 64.0  # so many roundings are elsewhere


def is_of_conversion(sp: BuiltModule, seen: Seen, steps: Sequence[Step]) -> bool:
    """Whether it comes of float64 alone: a table rounded to the subject's dtype is less exact than one of that call.

    What departs by more than a rounding of that dtype does not, nor what departs in that dtype.
    """
    if sp.dtype == sp.subject.dtype or seen.symptom.kind not in ("output", "gradient"):
        return False
    own = torch.finfo(getattr(torch, sp.subject.dtype))
    looks = ((sp.dtype, own.eps), (sp.subject.dtype, own.eps / _LET_PASS if own.bits > 16 else 0.0))
    return all(
        first_seen(Replays(sp.subject, dtype, "eval").fresh(), steps, differs_by(each)) is None for dtype, each in looks
    )
