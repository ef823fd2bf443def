"""FWD250 slot-holds-several-tokens

Detects: an expert that is given tokens, one in a row, but for rows that are the sum of two of them.
Matters: two tokens were given the same slot of an expert: both get what it makes of their sum, the loss goes down all
the same, and the more tokens there are the more are mixed.
Fix: number the tokens of an expert through, over first and second choices alike: start the second ones at the count of
the first, which is a sum and no mean.

Example:
    # faulty
    place = (chosen_second.cumsum(1) - 1 + chosen_first.mean(1, keepdim=True)) * chosen_second
    # correct
    place = (chosen_second.cumsum(1) - 1 + chosen_first.sum(1, keepdim=True)) * chosen_second
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.measurement import Mode
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import counted
from nsa_doctor.probes.behaviour.expert_rows import line_that_gives, summed_slots
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.probes.internal import part_at
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH = 67
_MODES: tuple[Mode, ...] = ("eval", "train")


def run(subject: Subject) -> Iterator[Finding]:
    for mode in _MODES:
        sp = comparable_module(subject, mode=mode)
        if sp.dtype != "float64":
            raise NotApplicableError("it does not run in float64, in which a sum tells what it is of")
        x = sp.input(min(_LENGTH, subject.max_length), batch=2)
        slots = summed_slots(sp, x)
        if slots is None:
            continue
        place = line_that_gives(sp, x, slots.given) or definition_place(sp.module)
        kind = type(part_at(sp.module, slots.name)).__name__
        yield Finding(
            message=f"{slots.name or kind} is given {slots.num_tokens} rows that are tokens, and beside them "
            f"{counted(slots.num_sums, 'sum')} of two tokens ({mode} mode): two share a slot",
            where=replace(place, module=slots.name, module_class=kind),
            evidence={"tokens": slots.num_tokens, "sums": slots.num_sums},
            repro=command_for(subject, "FWD250"),
        )
        return


def planted(subject: Subject) -> Subject:
    class Experts(nn.Module):
        def forward(self, rows: Tensor) -> Tensor:
            return rows.tanh()

    class Mixture(nn.Module):
        """Of whose slots the last take two tokens."""

        def __init__(self) -> None:
            super().__init__()
            self.experts = Experts()

        def forward(self, tokens: Tensor) -> Tensor:
            slots = torch.cat((tokens[:, :24], tokens[:, 24:28] + tokens[:, 28:]), 1)
            output: Tensor = self.experts(slots)
            return output

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.mixture = subject.build(subject.seed), Mixture()

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            tokens = torch.linspace(0, 99, 32 * 8, dtype=output.dtype).sin().view(1, 32, 8)
            return output + 0 * self.mixture(tokens).sum()

    return replace(subject, build=lambda _seed: Beside(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101",), priority=459)
