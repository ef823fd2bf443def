"""DEC114 removed-tokens-remain

Detects: a cache whose last tokens are removed, as where a draft is refused, behind which a step gives something else
than behind a cache that never held them.
Matters: speculative and assisted decoding go on with tokens that nobody accepted, or at the wrong position.
Fix: cut every tensor of every layer, and set every count and position that a step reads back with them.

Example:
    # faulty
    self.keys = self.keys[:, :length]
    self.values = self.values[:, :length]  # and self.seen as it was
    # correct
    self.seen = length
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.changed_cache import departed
from nsa_doctor.probes.attention.decoding import decoding_module
from nsa_doctor.probes.hooks.places import callable_place
from nsa_doctor.subject.contract import Subject

_PROMPT, _REMOVED, _ROWS = 5, 3, 2


def run(subject: Subject) -> Iterator[Finding]:
    crop, sp = subject.crop, decoding_module(subject)
    assert crop is not None
    kept = _PROMPT + 1
    if subject.max_length < kept + _REMOVED:
        return
    x, draft = sp.input(kept + 1, _ROWS), sp.input(_REMOVED, _ROWS, seed=subject.seed + 1)
    before = torch.cat((x[:, :kept], draft), dim=1), [_PROMPT, 1, *[1] * _REMOVED]
    found = departed(sp, before, lambda cache: crop(sp.module, cache, kept, _REMOVED), x[:, kept:], x)
    if found is not None:
        field = f"; {found.field} is other than there" if found.field else ""
        yield Finding(
            message=f"{_REMOVED} tokens are removed from a cache of {kept + _REMOVED}: the next step departs from one "
            f"behind a cache that never held them, {found.departure.text}{field}",
            where=callable_place(crop, sp.module),
            evidence={"field": found.field, "error": found.departure.error, "floor": found.departure.floor},
            repro=command_for(subject, "DEC114"),
        )


def planted(subject: Subject) -> Subject:
    def removes_nothing(module: nn.Module, cache: Any, num_kept: int, num_removed: int) -> Any:
        return cache

    return replace(subject, crop=removes_nothing)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    needs=("prefill", "step", "crop"),
    blocked_by=("FWD206", "NAN101", "DEC110"),
)
