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

from nsa_doctor.checks._shared.continued import continued_finding
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.attention.changed_cache import OF_CHANGE, departed, next_steps
from nsa_doctor.probes.attention.decoding import decoding_module
from nsa_doctor.probes.model.deliberate import is_on_purpose
from nsa_doctor.subject.contract import Subject

_ROWS = 2
# Tokens of the prompt, tokens removed, and steps behind them: within a block of any size, and over the ends of some.
_LENGTHS = ((5, 3, 1), (41, 11, 12))


def run(subject: Subject) -> Iterator[Finding]:
    for prompt, removed, steps in _LENGTHS if subject.profile != "smoke" else _LENGTHS[:1]:
        if subject.max_length >= prompt + 1 + max(removed, steps):
            found = _remaining(subject, prompt, removed, steps)
            yield from () if found is None else (found,)
            if found is not None:
                return


def _remaining(subject: Subject, prompt: int, removed: int, steps: int) -> Finding | None:
    crop, sp, kept = subject.crop, decoding_module(subject), prompt + 1
    assert crop is not None
    x, draft = sp.input(kept + steps, _ROWS), sp.input(removed, _ROWS, seed=subject.seed + 1)
    before = torch.cat((x[:, :kept], draft), dim=1), [prompt, 1, *[1] * removed]
    try:
        found = departed(sp, before, lambda cache: crop(sp.module, cache, kept, removed), x[:, kept:], x)
    except SubjectFailedError as failure:
        if failure.phase == OF_CHANGE and is_on_purpose(failure, subject.packages):
            return None  # as a ring that has overwritten what would be needed
        raise
    if found is None:
        return None
    words = f"{removed} tokens are removed from a cache of {kept + removed}: {next_steps(steps)} from one "
    words += "behind a cache that never held them"
    return continued_finding(sp, "DEC114", crop, words, found, "there")


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
