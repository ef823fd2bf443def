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

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.core.text import joined
from nsa_doctor.probes.attention.by_turns import BY_TURNS, STEPS, Decoding, departures, last_step
from nsa_doctor.probes.attention.decoding import decoding_module
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding]:
    found = next(departures(subject), None)
    if found is None:
        return
    own, together, departed = found
    dtype = decoding_module(subject).dtype
    sp, alone = last_step(subject, dtype, (own,), own)
    _, beside = last_step(subject, dtype, together, own)
    with torch.no_grad():
        divergence = first_divergence(sp, alone, beside, {})
    at = f"; outputs first diverge at {divergence.operation}" if divergence.operation else ""
    yield Finding(
        message=f"step {STEPS} of decoding {own.rows} row{'s'[: own.rows > 1]} differs when {_others(own, together)}: "
        f"{departed.text}{at}",
        where=divergence.place,
        evidence={
            "step": STEPS,
            "rows": own.rows,
            "prompt": own.sizes[0],
            "error": departed.error,
            "floor": departed.floor,
            "operation": divergence.operation,
        },
        repro=command_for(subject, "DEC110"),
    )


def _others(own: Decoding, together: tuple[Decoding, ...]) -> str:
    if together in BY_TURNS:
        rows = " and of ".join(str(each.rows) for each in together if each != own) or f"as many, {own.rows},"
        return f"sequences of {rows} rows with caches of their own are decoded between the steps"
    parts = joined([str(size) for size in together[1].sizes])
    return f"another with a cache of its own is decoded between the steps, in parts of {parts} tokens"


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
