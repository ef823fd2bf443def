"""FWD272 cell-arguments-swapped

Detects: an nn.GRUCell, nn.LSTMCell or nn.RNNCell whose input, in one call after another, is what it answered in the
call before, or that and something added, while its state is nothing that it ever answered but another part of the
input. A cell that several layers share, one that reads its own answers as a decoder does, and states that were masked,
normalised or added to are left alone.
Matters: what the cell carries from call to call goes through its candidate alone, and its gates mix in what came new:
shapes fit, it trains, and it forgets.
Fix: `cell(input, state)`.

Example:
    # faulty
    slots = self.gru(slots.flatten(0, 1), updates.flatten(0, 1))
    # correct
    slots = self.gru(updates.flatten(0, 1), slots.flatten(0, 1))
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.behaviour.swapped_states import cells_of, swapped_states
from nsa_doctor.probes.hooks.places import in_subject
from nsa_doctor.probes.model.built_module import comparable_module
from nsa_doctor.subject.contract import Subject

_LENGTH, _ROWS = 7, 3
_FEWEST = 3  # calls of a cell


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    if not cells_of(sp.module):
        raise NotApplicableError("it has no recurrent cell whose input and state are of one size")
    length = min(_LENGTH, subject.max_length)
    x, other = (sp.input(length, _ROWS, seed=subject.seed + each) for each in range(2))
    num_calls, found = swapped_states(sp, x, other)
    if num_calls < _FEWEST:
        raise NotApplicableError(f"its cells are called fewer than {_FEWEST} times in one pass")
    for each in found[:1]:
        yield Finding(
            message=f"{each.name or 'the cell'} is given its own last answer as its input, and what is new as its "
            f"state, in {each.num_swapped} of its {each.num_calls} calls at S={length}",
            where=in_subject(each.place, sp.module),
            evidence={"length": length, "num_calls": each.num_calls, "num_swapped": each.num_swapped},
            repro=command_for(subject, "FWD272"),
        )


def planted(subject: Subject) -> Subject:
    class Recurrent(nn.Module):
        """The subject's output, and what a cell makes of it token by token, with its arguments exchanged."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.cell = subject.build(subject.seed), nn.GRUCell(2, 2)

        def forward(self, x: Tensor) -> Tensor:
            output: Tensor = subject.forward(self.inner, x)
            state, states = torch.zeros_like(output[:, 0, :2]), []
            for token in output[..., :2].unbind(1):
                state = self.cell(state, token)
                states.append(state.sum(-1, keepdim=True))
            return output + torch.stack(states, 1)

    return replace(subject, build=lambda _seed: Recurrent(), forward=lambda module, x: module(x))


CHECK = Check(doc=__doc__, run=run, planted=planted, blocked_by=("FWD101", "FWD102", "NAN101"))
