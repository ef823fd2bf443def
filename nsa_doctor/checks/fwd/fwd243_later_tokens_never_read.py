"""FWD243 later-tokens-never-read

Detects: a subject that is declared bidirectional, in whose outputs earlier tokens count and later ones never do. A
    note where no token reads another.
Matters: an encoder that sees the past alone is trained, and loses what stands behind a token; nothing raises.
Fix: look at the line named: a causal mask, `is_causal=True` or a recurrence of one direction that the setting for
    encoders does not reach. Where it is meant to be causal, leave `--spec bidirectional` out.

Example:
    # faulty
    self.local = LocalAttention(window, causal=True)  # whatever the model's `causal` says
    # correct
    self.local = LocalAttention(window, causal=causal)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.future import Plan, leak, plans
from nsa_doctor.core.check import Check
from nsa_doctor.core.declared import Declaration
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import numbers, short_number
from nsa_doctor.probes.attention.hidden_future import hidden_future
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.internal import tree_leaves
from nsa_doctor.probes.numerics.compare import Departure, baseline
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding | Note]:
    if Declaration.BIDIRECTIONAL not in subject.spec:
        raise NotApplicableError("it is not declared bidirectional")
    tried = plans(subject)
    if not tried or any(leak(subject, plan)[1] is not None for plan in tried):
        return
    if _is_read_elsewhere(subject, tried[0]):
        return
    plan, sp = tried[0], tried[0].module(subject)
    never = f"no output depends on a later token at S={numbers({each.length for each in tried})}"
    found = _reading_of_the_past(subject, plan)
    if found is None:
        yield Note(
            message=f"declared bidirectional, but {never}, nor on an earlier one", where=definition_place(sp.module)
        )
        return
    x, _ = plan.inputs(sp, plan.length // 2)
    with unobserved():
        place = hidden_future(sp, x)
    yield Finding(
        message=f"declared bidirectional, but {never}; earlier ones change it by up to {short_number(found.error)}",
        where=place or definition_place(sp.module),
        evidence={"length": plan.length, "mode": plan.mode},
        repro=command_for(subject, "FWD243"),
    )


def _is_read_elsewhere(subject: Subject, plan: Plan) -> bool:
    """Whether something else that the subject returns reads later tokens, as of a direction of two."""
    sp, cut = plan.module(subject), plan.length // 2
    x, other = plan.inputs(sp, cut)
    with torch.no_grad(), unobserved():
        first, second = (
            [leaf[:, :cut] for leaf in tree_leaves(sp.subject.forward(sp.module, each.clone())) if _is_of(leaf, x)]
            for each in (x, other)
        )
    return any(not torch.allclose(one, two) for one, two in zip(first, second, strict=False))


def _is_of(leaf: object, x: Tensor) -> bool:
    return isinstance(leaf, Tensor) and leaf.is_floating_point() and leaf.shape[:2] == x.shape[:2]


def _reading_of_the_past(subject: Subject, plan: Plan) -> Departure | None:
    """What becomes of later tokens where those before are others, but for the first."""
    sp, cut = plan.module(subject), plan.length // 2
    x, other = plan.inputs(sp, 1)
    base = baseline(sp, x)
    with torch.no_grad():
        changed = sp(torch.cat((other[:, :cut], x[:, cut:]), 1))
    return base.departure(changed[:, cut:], tokens=slice(cut, None))


def planted(subject: Subject) -> Subject:
    def sees_the_past(module: nn.Module, x: Tensor) -> Tensor:
        scores = x @ x.mT
        hidden = torch.ones_like(scores, dtype=torch.bool).triu(1)
        return scores.masked_fill(hidden, -torch.inf).softmax(-1) @ x

    return replace(subject, spec=(Declaration.BIDIRECTIONAL,), forward=sees_the_past)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD206"),
    priority=458,
)
