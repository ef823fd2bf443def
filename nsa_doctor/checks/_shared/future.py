"""Where other later tokens change an output before them: FWD201's question, asked either way."""

from dataclasses import dataclass

import torch

from nsa_doctor.checks._shared.compared import cuts_of, long_length, middle_lengths, odd_lengths
from nsa_doctor.core.check import Profile
from nsa_doctor.core.measurement import Mode
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.numerics.compare import Departure, baseline, with_other_future
from nsa_doctor.subject.contract import Subject

_NUM_CUTS: dict[Profile, int] = {"smoke": 3, "quick": 5, "full": 9}
_LARGE = 30.0


@dataclass(frozen=True)
class Plan:
    """A length, where to cut it, and `scale` times as large values behind the cut: padding where that is 0."""

    length: int
    num_cuts: int
    mode: Mode = "eval"
    scale: float = 1.0


def plans(subject: Subject) -> list[Plan]:
    """What to try, the cheapest first."""
    if subject.is_slow:
        mode: Mode = "eval" if "eval" in subject.modes else subject.modes[0]
        return [Plan(length, 2, mode) for length in odd_lengths(subject)[:1] if length > 1]
    found = [Plan(length, _NUM_CUTS[subject.profile]) for length in odd_lengths(subject)]
    found += [Plan(found[0].length, 3, scale=_LARGE), Plan(found[0].length, 3, "train")]
    found += [Plan(found[0].length, 3, scale=0.0)]
    found += [Plan(length, 2) for length in middle_lengths(subject)]
    found += [Plan(length, 2, "train") for length in middle_lengths(subject)[1:2]]
    found += [Plan(length, 2) for length in long_length(subject)]
    if subject.profile == "full":
        found += [Plan(subject.max_length, 3, "train")]
    return [plan for plan in found if plan.length > 1 and plan.mode in subject.modes]


def leak(subject: Subject, plan: Plan) -> tuple[int, Departure | None]:
    """The first cut behind which other values change what comes before it, and how."""
    built = comparable_module(subject, mode=plan.mode)
    base = baseline(built, built.input(plan.length))
    for cut in cuts_of(plan.length, plan.num_cuts):
        with torch.no_grad():
            changed = built(with_other_future(built, base.x, cut, plan.scale))
        found = base.departure(changed[:, :cut], tokens=slice(cut), loudness=max(1.0, plan.scale))
        if found is not None:
            return cut, found
    return plan.length, None
