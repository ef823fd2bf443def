"""FWD301 differs-from-oracle

Detects: an output or a gradient that differs from an independent implementation's with the same weights.
Matters: the model computes something other than what it is named for, and every result is about that other thing.
Fix: compare the branch named with its equation, one query at a time, at the token named.

Example:
    # faulty
    weights = (q @ k.mT).masked_fill(hidden, floor).softmax(-1)  # the scale is left out
    # correct
    weights = (q @ k.mT * q.shape[-1] ** -0.5).masked_fill(hidden, floor).softmax(-1)
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, islice

from torch import Tensor

from nsa_doctor.core.check import Check
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.agreement import Worst, gradients, moved_by_rounding, worst_gradient
from nsa_doctor.probes.attention.oracles import (
    differing_part,
    disagreement,
    lengths_to_compare,
    twins_of,
    with_weights_of,
)
from nsa_doctor.probes.hooks.origin import origin
from nsa_doctor.probes.hooks.places import parameter_place
from nsa_doctor.probes.model.built_module import BuiltModule, built, comparable_module
from nsa_doctor.probes.numerics.precision import finest_precision
from nsa_doctor.subject.contract import Subject

_SHORT, _MODERATE = 96, 160  # another implementation may be a slow one; gradients need more than a tile of 64


def run(subject: Subject) -> Iterator[Finding]:
    sp = comparable_module(subject)
    yield from islice(chain(_all_differences(sp), _of_twins(subject, sp)), 1)


def _all_differences(sp: BuiltModule) -> Iterator[Finding]:
    lengths = lengths_to_compare(sp.subject)
    for length in lengths:
        yield from _outputs(sp, sp, length)
    yield from _gradients(sp, max((length for length in lengths if length <= _MODERATE), default=lengths[0]))
    if sp.dtype != sp.subject.dtype:
        narrow = built(sp.subject)
        wide = with_weights_of(narrow, sp)
        for length in lengths if sp.subject.profile == "full" else lengths[:1]:
            yield from _outputs(narrow, wide, length, f" in {narrow.dtype}")


def _of_twins(subject: Subject, sp: BuiltModule) -> Iterator[Finding]:
    lengths = lengths_to_compare(subject)
    short = [length for length in lengths if length <= _SHORT or subject.profile == "full"] or [_SHORT]
    for name, own, wide, twin in twins_of(subject, sp):
        worst, x = disagreement(own, wide, short[-1], twin)
        if worst is not None:
            yield _finding(twin, x, worst, f" under implementation {name}")


def _outputs(sp: BuiltModule, wide: BuiltModule, length: int, what: str = "") -> Iterator[Finding]:
    worst, x = disagreement(sp, wide, length)
    if worst is not None:
        yield _finding(sp, x, worst, what)


def _gradients(sp: BuiltModule, length: int) -> Iterator[Finding]:
    oracle, x = sp.subject.oracle, sp.input(length)
    assert oracle is not None
    truth = gradients(sp, oracle, x)
    if not truth or all(not bool(gradient.any()) for gradient in truth.values()):
        return  # an oracle without gradients
    eps = finest_precision(sp, x).eps
    moved = moved_by_rounding(sp, x, eps, lambda given: gradients(sp, oracle, given))
    worst = worst_gradient(gradients(sp, lambda _module, given: sp.call(given), x), truth, moved, eps)
    if worst is not None:
        yield _finding(sp, x, worst, f" in the gradient of {worst.name}")


def _finding(sp: BuiltModule, x: Tensor, worst: Worst, what: str) -> Finding:
    part, place = differing_part(sp, x)
    at = f"token {worst.token}, one of {worst.num_tokens} such tokens" if worst.num_tokens else "the gradient"
    if place is None:
        place = replace(origin(sp.subject, sp.module, lambda: sp(x)), module="", module_class=type(sp.module).__name__)
    return Finding(
        message=f"the result differs from the oracle's by {worst.error:.2e} where rounding explains {worst.bound:.2e}"
        f"{what} at S={x.shape[1]} ({at}){part}",
        where=parameter_place(place, sp.module, worst.name),
        evidence={"length": x.shape[1], "error": worst.error, "bound": worst.bound, "token": worst.token},
        repro=command_for(sp.subject, "FWD301"),
    )


def planted(subject: Subject) -> Subject:
    return replace(subject, forward=lambda module, x: subject.forward(module, x) * 1.001)


CHECK = Check(
    doc=__doc__,
    run=run,
    planted=planted,
    needs=("oracle",),
    explained_by=("SEL", "NAN"),
    fuzzed=("weights do not sum to one", "differs from dense attention"),
)
