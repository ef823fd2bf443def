"""FWD201 future-changes-output

Detects: a token whose output changes when later tokens do, by other ordinary values or by large ones.
Matters: training reads the answer from the future; the loss is too good, and decoding cannot repeat it.
Fix: look at the line named: a mask off by one, built for another length or added on the wrong axis, a statistic taken
over all tokens, or a choice of blocks made with keys a query may not see.

Example:
    # faulty
    hidden = torch.ones(S, S, dtype=torch.bool).triu(2)  # a token sees the next one
    # correct
    hidden = torch.ones(S, S, dtype=torch.bool).triu(1)
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import confirmed, cuts_of, long_length, middle_lengths, odd_lengths, one, told
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Mode
from nsa_doctor.probes.model.built_module import comparable_specimen
from nsa_doctor.probes.numerics.compare import Departure, baseline, with_other_future
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

_NUM_CUTS = {"smoke": 3, "quick": 5, "full": 9}
_LARGE = 30.0


@dataclass(frozen=True)
class _Plan:
    length: int
    num_cuts: int
    mode: Mode = "eval"
    scale: float = 1.0


def run(subject: Subject) -> Iterator[Finding]:
    plans = [_Plan(length, _NUM_CUTS[subject.profile]) for length in odd_lengths(subject)]
    plans += [_Plan(plans[0].length, 3, scale=_LARGE), _Plan(plans[0].length, 3, "train")]
    plans += [_Plan(length, 3) for length in middle_lengths(subject)]
    plans += [_Plan(length, 3, "train") for length in middle_lengths(subject)[-1:]]
    plans += [_Plan(length, 2) for length in long_length(subject)]
    if subject.profile == "full":
        plans += [_Plan(subject.max_length, 3, "train")]
    yield from one(_examine(subject, plan) for plan in plans if plan.length > 1 and plan.mode in subject.modes)


def _examine(subject: Subject, plan: _Plan) -> Finding | None:
    found = confirmed(subject, lambda subject: _leak(subject, plan)[1])
    if found is None:
        return None
    cut, again = _leak(subject, plan)
    if again is None:
        return None  # what comes and goes from run to run is told by FWD206
    built = comparable_specimen(subject, mode=plan.mode)
    x = built.input(plan.length)
    other = with_other_future(built, x, cut, plan.scale)
    divergence = first_divergence(built, lambda: built(x), lambda: built(other), {plan.length: cut})
    changed = f"{'large values in ' if plan.scale != 1 else ''}tokens >= {cut} change the output before them"
    message = f"causality violation at S={plan.length} ({plan.mode}): {changed}"
    return told(subject, "FWD201", message, divergence, found, length=plan.length, mode=plan.mode, cut=cut)


def _leak(subject: Subject, plan: _Plan) -> tuple[int, Departure | None]:
    """The first cut behind which other values change what comes before it, and how."""
    built = comparable_specimen(subject, mode=plan.mode)
    base = baseline(built, built.input(plan.length))
    for cut in cuts_of(plan.length, plan.num_cuts):
        with torch.no_grad():
            changed = built(with_other_future(built, base.x, cut, plan.scale))
        found = base.departure(changed[:, :cut], tokens=slice(cut), loudness=plan.scale)
        if found is not None:
            return cut, found
    return plan.length, None


def planted(subject: Subject) -> Subject:
    def looks_ahead(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = subject.forward(module, x)
        return output + output.roll(-1, 1)

    return replace(subject, forward=looks_ahead)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    profile="smoke",
    blocked_by=("FWD206",),
    explained_by=("FWD203",),
    priority=460,
    fuzzed=("future changes output",),
    commands=("throughput",),
)
