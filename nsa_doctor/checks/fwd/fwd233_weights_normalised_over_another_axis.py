"""FWD233 weights-normalised-over-another-axis

Detects: weights that a softmax normalises over heads, rows or queries, and that are summed over the tokens they weigh;
    and a module that holds a softmax, calls none, and sums values by products that nothing normalises.
Matters: what is meant to be a mean grows and shrinks with the length and with the other heads; it trains, and worse.
Fix: name the axis of the tokens that are weighed: `softmax(dim=-1)` of scores [..., queries, keys].

Example:
    # faulty
    weights = scores.softmax(dim=1)  # of [B, H, S, S]: over the heads
    # correct
    weights = scores.softmax(dim=-1)
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Place
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.idle_softmax import idle_softmaxes
from nsa_doctor.probes.attention.weighed_axes import Weighing, weighings
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 19, 2  # as long as nothing else is


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    x = sp.input(min(_LENGTH, subject.max_length), _ROWS)
    with torch.no_grad():
        idle = list(idle_softmaxes(sp, x))
    for left_out in idle[:1]:
        count = len(idle) - 1
        more = f"; so {'does' if count == 1 else 'do'} {count} more" if count else ""
        yield Finding(
            message=(
                f"{left_out.holder or 'the module'} holds a softmax as {left_out.name}, calls none, and sums values by "
                f"products of queries and keys that nothing normalises{more}"
            ),
            where=in_subject(left_out.place, sp.module),
            evidence={"softmax": left_out.name, "modules": len(idle)},
            repro=command_for(subject, "FWD233"),
        )
    found = weighings(sp, x)
    if not (found or idle):
        raise NotApplicableError("no softmax was seen")
    by_line: dict[Place, list[Weighing]] = defaultdict(list)
    for each in found:
        by_line[each.place].append(each)
    for each, *others in by_line.values():
        if each.summed is not None and all(one.is_wrong for one in (each, *others)):
            shape, summed = list(each.weights.shape), each.summed
            yield Finding(
                message=(
                    f"a softmax normalises weights {shape} over axis {each.axis}, and they are summed over axis "
                    f"{summed.axis}, the {summed.size} tokens, along which they add up to {summed.least:.3g} to "
                    f"{summed.most:.3g}"
                ),
                where=in_subject(each.place, sp.module),
                evidence={"axis": each.axis, "summed": summed.axis, "least": summed.least, "most": summed.most},
                repro=command_for(subject, "FWD233"),
            )
            return


def planted(subject: Subject) -> Subject:
    def weighs_over_queries(module: nn.Module, x: Tensor) -> Tensor:
        output = subject.forward(module, x)
        tokens = x.double()[..., None] if x.dim() < 3 else x
        return output + 0 * ((tokens @ tokens.mT).softmax(dim=1) @ tokens).sum().to(output)

    return replace(subject, forward=weighs_over_queries)


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "NAN101"))
