"""DEC107 rows-mix-in-decoding

Detects: a row that decodes differently beside other rows than in one whole pass, and outputs that later steps change.
Matters: requests served together read each other's past, and text already given out changes under its reader.
Fix: index the cache by row, and return memory that the cache does not use again.

Example:
    # faulty
    self.output[:] = self.project(y)
    return self.output  # the next step writes into what was returned
    # correct
    return self.project(y)
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.decoded import departures
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.decoding import decoding_module, lengths_to_decode
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.phase import ask
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.subject.contract import Subject

_ROWS, _STEPS = 3, 6


def run(subject: Subject) -> Iterator[Finding]:
    sp = decoding_module(subject)
    length, _ = lengths_to_decode(subject)
    prompt = length - min(length - 1, 24)
    sizes = [prompt, *[1] * (length - prompt)]
    what = f"decoding {_ROWS} rows together"
    found = list(departures(sp, "DEC107", length, sizes, what, rows=_ROWS))
    few = min(length, _STEPS)
    found = found or list(departures(sp, "DEC107", few, [1] * few, f"{what} from their first token on", rows=_ROWS))
    yield from found or _changed_later(sp, min(length, prompt + _STEPS), prompt)


def _changed_later(sp: BuiltModule, length: int, prompt: int) -> Iterator[Finding]:
    """Outputs, and the tokens handed in, as they are at once and after further steps."""
    prefill, step, module = sp.subject.prefill, sp.subject.step, sp.module
    assert prefill is not None
    assert step is not None
    parts = [part.clone() for part in sp.input(length, 2).split([prompt, *[1] * (length - prompt)], dim=1)]
    given = [part.clone() for part in parts]
    outputs: list[tuple[Tensor, Tensor]] = []
    with torch.no_grad():
        output, cache = ask("prefill", lambda: prefill(module, parts[0]), module)
        outputs.append((output, output.clone()))
        for part in parts[1:]:
            output, cache = ask("step", lambda part=part, cache=cache: step(module, part, cache), module)
            outputs.append((output, output.clone()))
    changed = [index for index, (now, then) in enumerate(outputs) if not torch.equal(now, then)]
    altered = [index for index, (now, then) in enumerate(zip(parts, given, strict=True)) if not torch.equal(now, then)]
    for indices, what in ((changed, "output"), (altered, "input")):
        if indices:
            yield Finding(
                message=f"{len(indices)} of {len(parts)} {what}s of decoding are changed later, the first of step "
                f"{indices[0]}",
                where=origin(sp.subject, module, lambda: prefill(module, given[0].clone())),
                evidence={"step": indices[0], "steps": len(indices)},
                repro=command_for(sp.subject, "DEC107"),
            )


def planted(subject: Subject) -> Subject:
    step = subject.step
    assert step is not None

    def faulty(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        output, cache = step(module, x, cache)
        return output + 0.1 * output.mean(0, keepdim=True) * (x.shape[0] > 1), cache

    return replace(subject, step=faulty)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("prefill", "step"), blocked_by=("FWD206", "NAN101"))
