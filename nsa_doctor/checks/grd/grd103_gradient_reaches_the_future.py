"""GRD103 gradient-reaches-the-future

Detects: a gradient that flows from the first tokens' output into later tokens, on which that output does not depend.
Matters: training leans on what decoding will not have; the loss looks better than the model is.
Fix: mask in the backward what the forward masks; at the call named it is not.

Example:
    # faulty
    grad_v = scores.softmax(-1).mT @ grad_output  # backward forgets the mask of the forward
    # correct
    weights = scores.masked_fill(hidden, float("-inf")).softmax(-1)
    grad_v = weights.mT @ grad_output
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from nsa_doctor.checks._shared.gradient import benches
from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding, Note
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.gradients.derivative_probe import DerivativeProbe
from nsa_doctor.probes.gradients.future import Reach, reach_into_the_future
from nsa_doctor.probes.gradients.gradient_fault import find_fault
from nsa_doctor.probes.hooks.places import definition_place
from nsa_doctor.subject.contract import Subject


def run(subject: Subject) -> Iterator[Finding | Note]:
    for mode, length, make in benches(subject, only_one_length=True):
        if length < 2:
            continue
        bench = make(length)
        reach = reach_into_the_future(bench.built, bench.x, length // 2)
        if reach is not None and reach.is_beyond_rounding:
            yield _reported(subject, mode, length, bench, reach)
            return


def _reported(subject: Subject, mode: str, length: int, bench: DerivativeProbe, reach: Reach) -> Finding | Note:
    fault = find_fault(DerivativeProbe(bench.built, bench.x, only_first=length // 2))
    place = definition_place(bench.built.module) if fault is None else fault.place
    sought = "" if fault is None else f", through {fault.what}"
    message = (
        f"the gradient of the first {length // 2} of {length} tokens reaches token {reach.token}: {reach.future:.3g} "
        f"beside {reach.past:.3g} for tokens that count, in {mode} mode{sought}"
    )
    if fault is not None and fault.reason:
        return Note(message=f"{message}; {fault.reason}", where=place)
    return Finding(
        message=message,
        where=place,
        evidence={"length": length, "mode": mode, "future": reach.future, "past": reach.past, "token": reach.token},
        control=f"the output of those tokens is the same whatever tokens {length // 2} to {length - 1} are",
        repro=command_for(subject, "GRD103"),
    )


class _SpreadsBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        return 2 * gradients[0] + gradients[0].mean(1, keepdim=True)


def planted(subject: Subject) -> Subject:
    def mixes_gradients(module: nn.Module, x: Tensor) -> Tensor:
        output: Tensor = _SpreadsBackward.apply(subject.forward(module, x))
        return output

    return replace(subject, forward=mixes_gradients)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    blocked_by=("FWD101", "FWD206", "NAN101", "NAN102"),
    explained_by=("FWD201", "FWD202", "GRD101", "GRD403"),
    fuzzed=("gradient reaches others",),
    unless=("bidirectional",),
)
