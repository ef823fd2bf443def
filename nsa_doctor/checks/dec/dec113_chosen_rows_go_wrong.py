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

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.continued import continued_finding
from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import attempt
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.attention.changed_cache import departed, next_steps
from nsa_doctor.probes.attention.decoding import decoding_module
from nsa_doctor.probes.behaviour.timed_decoding import HELD, timed_by_rows
from nsa_doctor.probes.hooks.phase import unobserved
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.subject.contract import Subject

_ROWS = (2, 0, 0)  # a row that is chosen twice goes on in two ways
# Tokens of the prompt, and steps behind the choice: within a block of any size, and over the ends of some.
_LENGTHS = ((5, 1), (41, 12))


def run(subject: Subject) -> Iterator[Finding]:
    for prompt, steps in _LENGTHS if subject.profile != "smoke" else _LENGTHS[:1]:
        if subject.max_length >= prompt + 1 + steps:
            found = _wrong(decoding_module(subject), _ROWS, prompt, steps) or _wrong_with_times(subject, prompt, steps)
            if found is not None:
                yield found
                return


def _wrong(sp: BuiltModule, rows: Sequence[int], prompt: int, steps: int) -> Finding | None:
    reorder = sp.subject.reorder
    assert reorder is not None
    x, order = sp.input(prompt + 1 + steps, len(rows)), torch.tensor(rows, device=sp.subject.device)
    before, following = (x[:, : prompt + 1], [prompt, 1]), x[:, prompt + 1 :]
    chosen = torch.cat((x[order, : prompt + 1], following), 1)
    found = departed(sp, before, lambda cache: reorder(sp.module, cache, order), following, chosen)
    if found is None:
        return None
    words = f"rows {', '.join(map(str, rows))} are chosen of a cache of {len(rows)}: {next_steps(steps)} "
    words += "from that of these rows by themselves"
    return continued_finding(sp, "DEC113", reorder, words, found, "theirs")


def _wrong_with_times(subject: Subject, prompt: int, steps: int) -> Finding | None:
    """With times of each row's own; nothing where they go wrong without a choice too."""
    for sp in timed_by_rows(decoding_module(subject)):
        with unobserved():  # it may not take them in every call
            as_it_is = attempt(lambda sp=sp: _wrong(sp, range(len(_ROWS)), prompt, steps))
            found = attempt(lambda sp=sp: _wrong(sp, _ROWS, prompt, steps)) if as_it_is is None else None
        if isinstance(found, Finding):
            field = str(found.evidence["field"])
            own = field.replace(f".{HELD}", "", 1)
            words = found.message.replace(field, own) if field else found.message
            said = words.replace(":", ", each with times of its own:", 1)
            return replace(found, message=said, evidence={**found.evidence, "field": own})
    return None


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
