"""DEC116 reset-keeps-what-was

Detects: a cache that is reset (`reset`, `reset_cache`, `clear`), of all rows or of some, in which another prompt gives
something else than in a new cache; or rows beside those that are reset that do not go on as they were.
Matters: a server uses a cache again for the next request: its text depends on what another user wrote.
Fix: set every tensor, count and position that a step reads to what a new cache holds, in every layer, and for a row
that row of each alone.

Example:
    # faulty
    def reset(self):
        self.keys = self.values = None  # and self.seen as it was
    # correct
    def reset(self):
        self.keys = self.values = None
        self.seen = 0
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError, SubjectFailedError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.seams import offers_no
from nsa_doctor.probes.attention.changed_cache import OF_CHANGE
from nsa_doctor.probes.attention.decoding import decoding_module
from nsa_doctor.probes.attention.reset_cache import found_reset, remaining, rows_remaining
from nsa_doctor.probes.behaviour.other_memories import given_beside
from nsa_doctor.probes.hooks.places import callable_place
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.deliberate import is_on_purpose
from nsa_doctor.subject.contract import Subject

_ROWS, _CHOSEN = 2, (False, True, False)
_LENGTHS = ((9, 3), (41, 12))  # tokens of a prompt, and steps behind it: within a block of any size, and over some ends


def run(subject: Subject) -> Iterator[Finding]:
    if not (subject.offers("reset") or subject.offers("reset_rows")):
        raise NotApplicableError(offers_no(("reset",)))
    sp = decoding_module(subject)
    is_brief = subject.profile == "smoke" or subject.is_slow
    for prompt, steps in _LENGTHS[:1] if is_brief else _LENGTHS:
        if subject.max_length >= prompt + steps:
            try:
                found = _all(sp, prompt, steps) or _rows(sp, prompt, steps)
            except SubjectFailedError as failure:
                if failure.phase == OF_CHANGE and is_on_purpose(failure, subject.packages):
                    raise NotApplicableError(f"its reset refuses: {failure.caught.sentence}") from failure
                raise
            yield from () if found is None else (found,)
            if found is not None:
                return


def _all(sp: BuiltModule, prompt: int, steps: int) -> Finding | None:
    seam = sp.subject.reset or sp.subject.reset_rows
    assert seam is not None
    rows = () if sp.subject.reset is not None else (torch.ones(_ROWS, dtype=torch.bool, device=sp.subject.device),)
    change: Callable[[Any], Any] = lambda cache: seam(sp.module, cache, *rows)  # noqa: E731
    earlier, x = (sp.input(prompt + steps, _ROWS, sp.subject.seed + seed) for seed in (1, 0))
    for beside, given in given_beside(sp, x, found_reset(seam)):
        found = remaining(sp, earlier, x, prompt, change, found_reset(seam), given)
        if found is not None:
            field = f", and would not with {found.field} as in a new one" if found.field else ""
            words = (
                f"a cache of {prompt + steps} tokens is reset, and another prompt{beside} and {steps} steps are read "
            )
            words += f"into it: they depart from those in a new cache, {found.departure.text}{field}"
            evidence = {"field": found.field, "error": found.departure.error, "floor": found.departure.floor}
            return _finding(sp, seam, words, evidence)
    return None


def _rows(sp: BuiltModule, prompt: int, steps: int) -> Finding | None:
    seam, chosen = sp.subject.reset_rows, torch.tensor(_CHOSEN, device=sp.subject.device)
    if seam is None or sp.subject.max_length < prompt + 2 * steps:
        return None
    earlier, x = sp.input(prompt, len(_CHOSEN), sp.subject.seed + 1), sp.input(2 * steps, len(_CHOSEN))
    found = rows_remaining(sp, earlier, x, chosen, lambda cache: seam(sp.module, cache, chosen))
    if found is None:
        return None
    departure, is_of_it = found
    who = "it does not begin as in a new cache" if is_of_it else "the others do not go on as they were"
    words = f"row 1 of a cache of {len(_CHOSEN)} rows and {prompt} tokens is reset, and {2 * steps} steps follow: "
    words += f"{who}, {departure.text}"
    return _finding(sp, seam, words, {"field": "", "error": departure.error, "floor": departure.floor})


def _finding(sp: BuiltModule, seam: Callable[..., Any], message: str, evidence: dict[str, Any]) -> Finding:
    place, repro = callable_place(seam, sp.module), command_for(sp.subject, "DEC116")
    return Finding(message=message, where=place, evidence=evidence, repro=repro)


def planted(subject: Subject) -> Subject:
    def keeps_all(module: nn.Module, cache: Any) -> Any:
        return cache

    return replace(subject, reset=keeps_all)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    needs=("prefill", "step"),
    blocked_by=("FWD203", "FWD206", "NAN101", "DEC110", "DEC112"),
)
