"""DEC110 caches-mix

Detects: a step that gives another output because another sequence, with a cache of its own and another number of rows,
was decoded between the steps before it.
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
from nsa_doctor.core.reproduce import again
from nsa_doctor.probes.attention.decoding import decoding_specimen
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule, built
from nsa_doctor.probes.numerics.compare import Departure, departure
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

_PROMPT, _STEPS = 5, 4
_ROWS = (1, 2, 3)  # of the sequences that are decoded by turns
_ROUNDINGS = 1e4  # as where two runs are followed to where they part


def run(subject: Subject) -> Iterator[Finding]:
    if subject.max_length < _PROMPT + _STEPS:
        return
    found = next(_departures(subject), None)
    if found is None:
        return
    rows, departed = found
    sp, alone = _last_step(subject, rows, (rows,))
    _, beside = _last_step(subject, rows, _ROWS)
    with torch.no_grad():
        divergence = first_divergence(sp, alone, beside, {})
    at = f"; outputs first diverge at {divergence.operation}" if divergence.operation else ""
    others = " and of ".join(str(other) for other in _ROWS if other != rows)
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
        repro=again(subject, "DEC110"),
    )


def _departures(subject: Subject) -> Iterator[tuple[int, Departure]]:
    """How the last step of each sequence departs from that of the sequence alone."""
    for rows in _ROWS:
        with torch.no_grad():
            alone, beside = (_last_step(subject, rows, together)[1]() for together in ((rows,), _ROWS))
        scale = float(alone.abs().max()) * _ROUNDINGS * torch.finfo(alone.dtype).eps
        found = departure(beside, alone, torch.full(alone.shape[:2], scale, device=alone.device))
        if found is not None:
            yield rows, found


def _last_step(subject: Subject, rows: int, together: tuple[int, ...]) -> tuple[BuiltModule, Callable[[], Tensor]]:
    """A module that has decoded sequences of so many rows by turns, and the last step of the one of `rows`."""
    sp = built(subject, dtype=decoding_specimen(subject).dtype)  # one that nothing was decoded with
    prefill, step, module = subject.prefill, subject.step, sp.module
    assert prefill is not None
    assert step is not None
    sizes = [_PROMPT, *[1] * _STEPS]
    parts = {n: sp.input(sum(sizes), n, subject.seed + n).split(sizes, dim=1) for n in together}
    caches: dict[int, Any] = {}
    with torch.no_grad():
        for n in together:
            caches[n] = ask("prefill", lambda n=n: prefill(module, parts[n][0].clone()), module)[1]
        for index in range(1, _STEPS):
            for n in together:
                given, cache = parts[n][index].clone(), caches[n]
                caches[n] = ask("step", lambda given=given, cache=cache: step(module, given, cache), module)[1]
    return sp, lambda: ask("step", lambda: step(module, parts[rows][-1].clone(), caches[rows]), module)[0]


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
