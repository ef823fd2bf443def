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
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.numerics.compare import Departure, departure
from nsa_doctor.probes.numerics.divergence import first_divergence
from nsa_doctor.subject.contract import Subject

_PROMPT, _STEPS, _ROWS_BESIDE = 5, 4, 2
_ROUNDINGS = 1e4  # as where two runs are followed to where they part


def run(subject: Subject) -> Iterator[Finding]:
    if subject.max_length < _PROMPT + _STEPS:
        return
    found = _departure(subject)
    if found is None:
        return
    sp, alone = _last_step(subject, has_another=False)
    _, beside = _last_step(subject, has_another=True)
    with torch.no_grad():
        divergence = first_divergence(sp, alone, beside, {})
    at = f"; outputs first diverge at {divergence.operation}" if divergence.operation else ""
    yield Finding(
        message=f"step {_STEPS} of decoding gives another output when a sequence of {_ROWS_BESIDE} rows with its own "
        f"cache is decoded between the steps: {found.told}{at}",
        where=divergence.place,
        evidence={"step": _STEPS, "error": found.error, "floor": found.floor, "operation": divergence.operation},
        repro=again(subject, "DEC110"),
    )


def _departure(subject: Subject) -> Departure | None:
    with torch.no_grad():
        alone, beside = (_last_step(subject, has_another=has_another)[1]() for has_another in (False, True))
    scale = float(alone.abs().max()) * _ROUNDINGS * torch.finfo(alone.dtype).eps
    return departure(beside, alone, torch.full(alone.shape[:2], scale, device=alone.device))


def _last_step(subject: Subject, *, has_another: bool) -> tuple[BuiltModule, Callable[[], Tensor]]:
    """A module that has decoded all but the last token, and that last step; with another sequence between."""
    sp = decoding_specimen(subject)
    prefill, step, module = subject.prefill, subject.step, sp.module
    assert prefill is not None
    assert step is not None

    def begun(parts: tuple[Tensor, ...]) -> Any:
        return ask("prefill", lambda: prefill(module, parts[0].clone()), module)[1]

    own = sp.input(_PROMPT + _STEPS).split([_PROMPT, *[1] * _STEPS], dim=1)
    other = sp.input(_PROMPT + _STEPS, batch=_ROWS_BESIDE, seed=subject.seed + 1).split([_PROMPT, *[1] * _STEPS], dim=1)
    with torch.no_grad():
        cache, cache_beside = begun(own), begun(other) if has_another else None
        for part, part_beside in zip(own[1:-1], other[1:-1], strict=True):
            cache = ask("step", lambda part=part, cache=cache: step(module, part.clone(), cache), module)[1]
            if has_another:
                given, held = part_beside.clone(), cache_beside
                cache_beside = ask("step", lambda given=given, held=held: step(module, given, held), module)[1]
    return sp, lambda: ask("step", lambda: step(module, own[-1].clone(), cache), module)[0]


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
