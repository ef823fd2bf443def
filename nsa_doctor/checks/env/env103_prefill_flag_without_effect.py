"""ENV103 prefill-flag-without-effect

Detects: NSA_PREFILL_BATCHED that the code reads and does not follow: prompts are taken in alike under 0 and 1, or token
by token under 1 and at once under 0.
Matters: who turns it to narrow a fault compares a path with itself; token by token a prompt takes many times as long.
Fix: read the flag in one place, and let every way to take in a prompt ask there.

Example:
    # faulty
    is_batched = bool(os.environ.get("NSA_PREFILL_BATCHED"))  # "0" is true as well
    # correct
    is_batched = os.environ.get("NSA_PREFILL_BATCHED") == "1"
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import NotApplicableError
from nsa_doctor.core.finding import Finding
from nsa_doctor.core.reproduce import command_for
from nsa_doctor.probes.attention.decoding import decoding_module
from nsa_doctor.probes.model.flagged import operations_of, readers
from nsa_doctor.subject.contract import Subject

_FLAG = "NSA_PREFILL_BATCHED"
_LENGTH = 24
_TIMES = 2  # as much work, at least, is a prompt of so many tokens taken in one by one


def run(subject: Subject) -> Iterator[Finding]:
    place = next(readers(subject.packages, _FLAG), None)
    if place is None:
        raise NotApplicableError(f"no source of {subject.name} reads {_FLAG}")
    sp = decoding_module(subject)
    x = sp.input(min(_LENGTH, subject.max_length))
    one_by_one, at_once = (operations_of(subject.prefill, sp.module, x, {_FLAG: value}) for value in ("0", "1"))
    if one_by_one >= _TIMES * at_once:
        return
    does = "does the opposite" if at_once >= _TIMES * one_by_one else "has no effect"
    yield Finding(
        message=f"{_FLAG}, read here, {does}: a prompt of {x.shape[1]} tokens takes {one_by_one:,} operations under 0, "
        f"which asks for one token at a time, and {at_once:,} under 1",
        where=place,
        evidence={"length": x.shape[1], "operations_under_0": one_by_one, "operations_under_1": at_once},
        repro=command_for(subject, "ENV103"),
    )


def planted(subject: Subject) -> Subject:
    prefill = subject.prefill
    assert prefill is not None

    def is_deaf(module: nn.Module, x: Tensor) -> tuple[Tensor, Any]:
        with patch.dict("os.environ", {_FLAG: "1"}):
            return prefill(module, x)

    return replace(subject, prefill=is_deaf)


CHECK = Check(doc=__doc__, run=run, planted=planted, needs=("prefill", "step"))
