"""DEC110 caches-mix

Detects: a step that gives another output because another sequence, with a cache of its own and another number of rows
or as many, was decoded between the steps before it.
Matters: a server decodes many sequences by turns; each then continues a text that is partly another's.
Fix: keep what belongs to a sequence in its cache, not in an attribute of the module.

Example:
    # faulty
    self.past = self.past + x.shape[1]  # of whichever sequence came last
    # correct
    cache.past = cache.past + x.shape[1]
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.decoding import decoding_module
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.numerics.compare import Departure, departure
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

_PROMPT, _STEPS = 5, 4
_ROWS = (1, 2, 3)  # of the sequences that are decoded by turns
_TOGETHER = (_ROWS, (2, 2))
_ROUNDINGS = 1e4  # as where two runs are followed to where they part


def run(subject: Subject) -> Iterator[Finding]:
    if subject.max_length < _PROMPT + _STEPS:
        return
    found = next(_departures(subject), None)
    if found is None:
        return
    rows, together, departed = found
    sp, alone = _last_step(subject, rows, (rows,))
    _, beside = _last_step(subject, rows, together)
    with torch.no_grad():
        divergence = first_divergence(sp, alone, beside, {})
    at = f"; outputs first diverge at {divergence.operation}" if divergence.operation else ""
    others = " and of ".join(str(other) for other in together if other != rows) or f"as many, {rows},"
    yield Finding(
        message=f"step {_STEPS} of decoding {rows} row{'s'[: rows > 1]} differs when sequences of {others} "
        f"rows with caches of their own are decoded between the steps: {departed.text}{at}",
        where=divergence.place,
        evidence={
            "step": _STEPS,
            "rows": rows,
            "error": departed.error,
            "floor": departed.floor,
            "operation": divergence.operation,
        },
        repro=command_for(subject, "DEC110"),
    )


def _departures(subject: Subject) -> Iterator[tuple[int, tuple[int, ...], Departure]]:
    """How the last step of each sequence departs from that of the sequence alone, and which were decoded by turns."""
    for together in _TOGETHER:
        for rows in dict.fromkeys(together):
            with torch.no_grad():
                alone, beside = (_last_step(subject, rows, each)[1]() for each in ((rows,), together))
            scale = float(alone.abs().max()) * _ROUNDINGS * torch.finfo(alone.dtype).eps
            found = departure(beside, alone, torch.full(alone.shape[:2], scale, device=alone.device))
            if found is not None:
                yield rows, together, found


def _last_step(subject: Subject, rows: int, together: tuple[int, ...]) -> tuple[BuiltModule, Callable[[], Tensor]]:
    """A module that has decoded sequences of so many rows by turns, and the last step of the first one of `rows`."""
    sp = built(subject, dtype=decoding_module(subject).dtype)  # one that nothing was decoded with
    prefill, step, module = subject.prefill, subject.step, sp.module
    assert prefill is not None
    assert step is not None
    sizes, first = [_PROMPT, *[1] * _STEPS], together.index(rows)
    seeds = [subject.seed + n + len(_ROWS) * number * (n in together[:number]) for number, n in enumerate(together)]
    parts = [sp.input(sum(sizes), n, seed).split(sizes, dim=1) for n, seed in zip(together, seeds, strict=True)]
    with torch.no_grad():
        caches = [ask("prefill", lambda own=own: prefill(module, own[0].clone()), module)[1] for own in parts]
        for index in range(1, _STEPS):
            for number, own in enumerate(parts):
                given, cache = own[index].clone(), caches[number]
                caches[number] = ask("step", lambda given=given, cache=cache: step(module, given, cache), module)[1]
    return sp, lambda: ask("step", lambda: step(module, parts[first][-1].clone(), caches[first]), module)[0]


def planted(subject: Subject) -> Subject:
    step = subject.step
    assert step is not None
    rows: dict[int, int] = {}

    def remembers_the_rows(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        output, cache = step(module, x, cache)
        last = rows.get(id(module), x.shape[0])
        rows[id(module)] = x.shape[0]
        return output * (1.0 if last == x.shape[0] else 1.5), cache

    return replace(subject, step=remembers_the_rows)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("prefill", "step"), blocked_by=("FWD206", "NAN101"))
