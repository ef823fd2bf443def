"""DEC112 step-spoils-its-state

Detects: a step that writes into a tensor of the state it is given and returns another one in its place, so that a
second step from that state (another beam, a draft that is refused) gives something else.
Matters: whoever keeps a state to go on from it again, as beam search and speculative decoding do, gets another text.
Fix: let a step leave the state it is given alone, or update all of it in place and return that.

Example:
    # faulty
    state = state.mul_(decay) + k * v  # the caller's own, decayed
    # correct
    state = state * decay + k * v
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.decoding import decoding_module
from nsa_doctor.probes.attention.spoilt_state import spoilt_state
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.subject.contract import Subject

_PROMPT = 5


def run(subject: Subject) -> Iterator[Finding]:
    sp = decoding_module(subject)
    found = spoilt_state(sp, _PROMPT) if subject.max_length >= _PROMPT + 2 else None
    if found is None:
        return
    yield Finding(
        message=f"a step writes into {found.field} of the state that it is given and returns another in its place: a "
        f"second step from that state departs, {found.departure.text}",
        where=found.place if found.place.file else definition_place(sp.module),
        evidence={"field": found.field, "error": found.departure.error, "floor": found.departure.floor},
        repro=command_for(subject, "DEC112"),
    )


def planted(subject: Subject) -> Subject:
    prefill, step = subject.prefill, subject.step
    assert prefill is not None
    assert step is not None

    def begins_a_sum(module: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
        output, cache = prefill(module, x)
        return output, (cache, torch.ones_like(output[:, -1:]))

    def decays_the_callers(module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        cache, total = state
        output, cache = step(module, x, cache)
        total = total.mul_(0.5) + output[:, -1:].detach()
        return output + 0.1 * total, (cache, total)

    return replace(subject, prefill=begins_a_sum, step=decays_the_callers)


CHECK = Check(
    doc=__doc__, run=run, planted=planted, needs=("prefill", "step"), blocked_by=("FWD206", "NAN101"), priority=645
)
