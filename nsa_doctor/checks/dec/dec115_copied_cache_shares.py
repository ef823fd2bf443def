"""DEC115 copied-cache-shares

Detects: a copy of a cache, as its `fork`, `clone` or `copy` makes one, that changes what the cache it was made of gives
when both go on by turns, or is changed by it, or goes on from something else.
Matters: samples of one prompt write into each other's past: each goes on with tokens of another.
Fix: copy every tensor that a step writes into, of every layer, and every count and position.

Example:
    # faulty
    other.keys = list(self.keys)  # a new list of the same tensors, which steps write into
    # correct
    other.keys = [key.clone() for key in self.keys]
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.changed_cache import parted
from nsa_doctor.probes.attention.decoding import decoding_module
from nsa_doctor.probes.hooks.places import callable_place
from nsa_doctor.subject.contract import Subject

_ROWS = 2
_LENGTHS = ((6, 4), (42, 12))  # tokens of the prompt, and steps of each behind it


def run(subject: Subject) -> Iterator[Finding]:
    for prompt, steps in _LENGTHS if subject.profile != "smoke" else _LENGTHS[:1]:
        if subject.max_length >= prompt + steps:
            found = _sharing(subject, prompt, steps)
            yield from () if found is None else (found,)
            if found is not None:
                return


def _sharing(subject: Subject, prompt: int, steps: int) -> Finding | None:
    fork, sp = subject.fork, decoding_module(subject)
    assert fork is not None
    x = sp.input(prompt + steps, _ROWS)
    ways = sp.input(steps, _ROWS, seed=subject.seed + 1), x[:, prompt:]
    found = parted(sp, x[:, :prompt], ways, lambda cache: fork(sp.module, cache))
    if found is None:
        return None
    who = "the copy" if found.is_of_copy else "the cache it was made of"
    field = f"; a step from the one changes {found.field} of the other" if found.field else ""
    return Finding(
        message=f"a cache of {prompt} tokens is copied, and both go on by turns with other tokens: {who} departs from "
        f"the same tokens decoded by themselves, {found.departure.text}{field}",
        where=callable_place(fork, sp.module),
        evidence={"field": found.field, "error": found.departure.error, "floor": found.departure.floor},
        repro=command_for(subject, "DEC115"),
    )


def planted(subject: Subject) -> Subject:
    prefill, step, fork = subject.prefill, subject.step, subject.fork
    assert prefill is not None
    assert step is not None
    assert fork is not None

    def begins_a_sum(module: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
        output, cache = prefill(module, x)
        return output, [cache, torch.zeros_like(output[:, -1:])]

    def adds_in_place(module: nn.Module, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        output, state[0] = step(module, x, state[0])
        state[1] += output[:, -1:].detach()
        return output + 0.1 * state[1], state

    def shares_the_sum(module: nn.Module, state: Any) -> Any:
        return [fork(module, state[0]), state[1]]

    return replace(subject, prefill=begins_a_sum, step=adds_in_place, fork=shares_the_sum)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    needs=("prefill", "step", "fork"),
    blocked_by=("FWD203", "FWD206", "NAN101", "DEC110", "DEC112"),
)
