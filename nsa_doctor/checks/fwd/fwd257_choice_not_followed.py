"""FWD257 choice-not-followed

Detects: experts of a list that are given tokens without regard to what their router, a linear layer, says: the one that
it scores lowest gets a token oftener than the one that it scores highest, or the highest gets it no oftener than any.
Matters: the router learns what it is asked for, and another expert answers; the mixture is one of any experts.
Fix: look at the comparison or the sorting between the choice and the call: `==` for `!=`, counts without their order.

Example:
    # faulty
    token, slot = torch.where(index != e)
    out.index_add_(0, token, weight[token, slot, None] * expert(x[token]))
    # correct
    token, slot = torch.where(index == e)
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.expert_rows import line_that_gives
from nsa_doctor.probes.behaviour.routed_rows import Routed, routed
from nsa_doctor.probes.hooks.places import definition_place, in_subject
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 37, 4


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    x = sp.input(min(_LENGTH, subject.max_length), _ROWS)
    found = list(routed(sp, x))
    if not found:
        raise NotApplicableError("no experts were seen that are given tokens beside a router's scores")
    wrong = [each for each in found if each.is_reversed or each.is_by_chance]
    if wrong:
        first, count = wrong[0], len(wrong) - 1
        more = f"; nor do those of {count} more" if count else ""
        place = line_that_gives(sp, x, first.given) or definition_place(part_at(sp.module, first.name))
        kind = type(part_at(sp.module, first.name)).__name__
        yield Finding(
            message=f"the experts of {first.name or 'the module'} do not follow {first.router}: {_how(first)}{more}",
            where=in_subject(replace(place, module=first.name, module_class=kind), sp.module),
            evidence={"best": first.best, "any": first.any_one, "worst oftener": first.worst_oftener},
            repro=command_for(subject, "FWD257"),
        )


def _how(found: Routed) -> str:
    if found.is_reversed:
        return f"the one that it scores lowest gets {found.worst_oftener:.0%} of the tokens oftener than the highest"
    return f"{found.best:.0%} of the tokens reach the one that it scores highest, and {found.any_one:.0%} any other"


def planted(subject: Subject) -> Subject:
    class Mixture(nn.Module):
        """The subject's output, as experts answer it that their router scores lowest."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = subject.build(subject.seed)
            self.router, self.experts = nn.Linear(2, 4), nn.ModuleList(nn.Linear(2, 2) for _ in range(4))

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            rows = output[..., :2].flatten(0, 1)
            chosen, answer = self.router(rows).argmin(-1), torch.zeros_like(rows)
            for number, expert in enumerate(self.experts):
                answer[chosen == number] = expert(rows[chosen == number])
            return output + answer.sum(-1).view(*output.shape[:2], 1)

    return replace(subject, build=lambda _seed: Mixture(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "NAN101"))
