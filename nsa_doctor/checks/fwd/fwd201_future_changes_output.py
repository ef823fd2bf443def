"""FWD201 future-changes-output

Detects: a token whose output changes when later tokens do, by other ordinary values, by large ones or by zeros.
Matters: training reads the answer from the future; the loss is too good, and decoding cannot repeat it.
Fix: look at the line named: a mask off by one, built for another length or added on the wrong axis, a statistic taken
    over all tokens, a row whose keys are all hidden (FWD217), or a choice of blocks made with keys a query may not see.
    Where it is meant, as in an encoder, say `--spec bidirectional`.

Example:
    # faulty
    hidden = torch.ones(S, S, dtype=torch.bool).triu(2)  # a token sees the next one
    # correct
    hidden = torch.ones(S, S, dtype=torch.bool).triu(1)
"""

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor, nn

from nsa_doctor.checks._shared.compared import confirmed, departure_finding, one, said_of
from nsa_doctor.checks._shared.future import HALF, Plan, half_leak, leak, plans
from nsa_doctor.checks._shared.other_rows import mixed_by_norms
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import short_number
from nsa_doctor.probes.attention.hidden_future import hidden_future
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding | Note]:
    found = list(one(_examine(subject, plan) for plan in plans(subject)))
    yield from found or _in_half(subject)
    yield from mixed_by_norms(subject, "tokens")


def _examine(subject: Subject, plan: Plan) -> Finding | None:
    found = confirmed(subject, lambda subject: leak(subject, plan)[1])
    if found is None:
        return None
    cut, again = leak(subject, plan)
    if again is None:
        return None  # what comes and goes from run to run is reported by FWD206
    built = plan.module(subject)
    x, other = plan.inputs(built, cut)
    divergence = first_divergence(built, lambda: built(x), lambda: built(other), {plan.length: cut})
    changed = f"{plan.words}tokens >= {cut} change the output before them{said_of(plan.values)}"
    message = f"causality violation at S={plan.length} ({plan.mode}): {changed}"
    finding = departure_finding(
        subject, "FWD201", message, divergence, found, length=plan.length, mode=plan.mode, cut=cut
    )
    mask = divergence.mask
    if mask is not None and (divergence.hides_all or mask.line_text != divergence.place.line_text):
        finding = replace(finding, message=f"{finding.message}; {divergence.mask_text}", where=mask)
    with unobserved():
        is_causal_elsewhere = hidden_future(built, x) is not None
    if "--subject" not in subject.options or is_causal_elsewhere:
        return finding
    return replace(finding, message=f"{finding.message}; if that is meant, say --spec bidirectional")


def _in_half(subject: Subject) -> Iterator[Finding]:
    """The finding where only half precision lets the future through, by more than it rounds."""
    found = half_leak(subject)
    if found is None or half_leak(replace(subject, seed=subject.seed + 1)) is None:
        return
    sp, length = found.built, found.x.shape[1]
    divergence = first_divergence(sp, lambda: sp(found.x), lambda: sp(found.other), {length: found.cut})
    at = f"; outputs first diverge at {divergence.operation}" if divergence.operation else ""
    yield Finding(
        message=f"causality violation at S={length} in {HALF} alone: tokens >= {found.cut} change the output before "
        f"them, by up to {short_number(found.change)} where it comes to {short_number(found.size)}{at}",
        where=divergence.place,
        evidence={"length": length, "cut": found.cut, "dtype": HALF, "error": found.change},
        control=f"in {comparable_module(subject).dtype} they do not",
        repro=command_for(subject, "FWD201"),
    )


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
    unless=("bidirectional",),
    priority=460,
    fuzzed=("future changes output",),
    commands=("throughput",),
    telling=True,
)
