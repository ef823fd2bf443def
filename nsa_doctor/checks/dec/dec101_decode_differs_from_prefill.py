"""DEC101 decode-differs-from-prefill

Detects: tokens that come out differently when they are decoded one by one through the cache than in one pass over all.
Matters: training and evaluation use the one and generation the other: the model that is served is not the one trained.
Fix: compare positions, rotary offsets and what is cached before and after normalisation at the first token named.

Example:
    # faulty
    q = rotate(q, torch.arange(q.shape[1]))  # every step is at position 0
    # correct
    q = rotate(q, torch.arange(past, past + q.shape[1]))
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.decoded import departures
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.probes.attention.decoding import decode, decoding_module, lengths_to_decode
from nsa_doctor.probes.model.built_module import BuiltModule
from nsa_doctor.probes.model.nominal_time import nominal_seconds
from nsa_doctor.probes.model.training import forward_backward
from nsa_doctor.subject.contract import Subject

_STEPS, _RATE = 2, 0.01
_COUNTED, _LONGEST = 8, 600
_NOMINAL_SECONDS = {"smoke": 0.0, "quick": 0.5, "full": 4.0}  # for one long sequence, beyond windows and tables


def run(subject: Subject) -> Iterator[Finding]:
    sp = decoding_module(subject)
    length, _ = lengths_to_decode(subject)
    found = list(departures(sp, "DEC101", length, [1] * length, "decoding token by token"))
    if not found and (longer := _affordable(sp)) > length:
        found = list(departures(sp, "DEC101", longer, [1] * longer, "decoding token by token"))
    if not found and subject.profile != "smoke":
        _train(sp, length)
        after = f"decoding token by token after {_STEPS} optimizer steps"
        found = list(departures(sp, "DEC101", length, [1] * length, after))
    yield from found


def _affordable(sp: BuiltModule) -> int:
    """How many tokens there is time to decode."""
    counted = min(_COUNTED, sp.subject.max_length)
    each = nominal_seconds(lambda: decode(sp, sp.input(counted), [1] * counted)) / counted
    return min(_LONGEST, sp.subject.max_length, int(_NOMINAL_SECONDS[sp.subject.profile] / max(each, 1e-9)))


def _train(sp: BuiltModule, length: int) -> None:
    parameters = [parameter for parameter in sp.module.parameters() if parameter.requires_grad]
    if not parameters:
        return
    optimizer = torch.optim.SGD(parameters, lr=_RATE)
    for index in range(_STEPS):
        optimizer.zero_grad()
        forward_backward(sp, sp.input(length, seed=sp.subject.seed + index))
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()


def planted(subject: Subject) -> Subject:
    step = subject.step
    assert step is not None

    def faulty(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        output, cache = step(module, x, cache)
        return output * 1.01, cache

    return replace(subject, step=faulty)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    needs=("prefill", "step"),
    profile="smoke",
    blocked_by=("FWD206", "NAN101"),
    explained_by=("DEC111",),
    telling=True,
    unless=("stochastic",),
)
