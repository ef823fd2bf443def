"""DEC113 chosen-rows-go-wrong

Detects: a cache of which rows are chosen, as beam search does after each token, behind which a step gives something
else than behind the same rows decoded by themselves.
Matters: every beam goes on with the keys or values of another; the text reads well and is not the most probable.
Fix: choose the rows of every tensor of every layer, and of lengths and positions that are kept per row.

Example:
    # faulty
    self.keys = [k.index_select(0, rows) for k in self.keys]  # and the values as they were
    # correct
    self.keys = [k.index_select(0, rows) for k in self.keys]
    self.values = [v.index_select(0, rows) for v in self.values]
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.continued import continued_finding
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.attention.changed_cache import departed, next_steps
from nsa_doctor.probes.attention.decoding import decoding_module
from nsa_doctor.subject.contract import Subject

_ROWS = (2, 0, 0)  # a row that is chosen twice goes on in two ways
# Tokens of the prompt, and steps behind the choice: within a block of any size, and over the ends of some.
_LENGTHS = ((5, 1), (41, 12))


def run(subject: Subject) -> Iterator[Finding]:
    for prompt, steps in _LENGTHS if subject.profile != "smoke" else _LENGTHS[:1]:
        if subject.max_length >= prompt + 1 + steps:
            found = _wrong(subject, prompt, steps)
            yield from () if found is None else (found,)
            if found is not None:
                return


def _wrong(subject: Subject, prompt: int, steps: int) -> Finding | None:
    reorder, sp = subject.reorder, decoding_module(subject)
    assert reorder is not None
    x, rows = sp.input(prompt + 1 + steps, len(_ROWS)), torch.tensor(_ROWS, device=subject.device)
    before, following = (x[:, : prompt + 1], [prompt, 1]), x[:, prompt + 1 :]
    chosen = torch.cat((x[rows, : prompt + 1], following), 1)
    found = departed(sp, before, lambda cache: reorder(sp.module, cache, rows), following, chosen)
    if found is None:
        return None
    words = f"rows {', '.join(map(str, _ROWS))} are chosen of a cache of {len(_ROWS)}: {next_steps(steps)} "
    words += "from that of these rows by themselves"
    return continued_finding(sp, "DEC113", reorder, words, found, "theirs")


def planted(subject: Subject) -> Subject:
    def chooses_nothing(module: nn.Module, cache: Any, rows: Tensor) -> Any:
        return cache

    return replace(subject, reorder=chooses_nothing)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    needs=("prefill", "step", "reorder"),
    blocked_by=("FWD203", "FWD206", "NAN101", "DEC107", "DEC110"),
)
