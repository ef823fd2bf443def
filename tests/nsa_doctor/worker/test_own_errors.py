"""What the doctor's own code raises in a call is no finding of the subject's, whether or not a check swallows it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core.check import Check
from nsa_doctor.core.errors import attempt
from nsa_doctor.core.finding import Result, Verdict
from nsa_doctor.core.package import own_file
from nsa_doctor.probes.model.built_module import built
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check

OWN = compile("{}['a state']", own_file("adapters", "decoding_discovery.py"), "eval")


def checked(subject: Subject, *, is_swallowed: bool) -> Result:
    """By a check that calls it once."""

    def run(subject: Subject) -> Iterator[Any]:
        sp = built(subject)
        attempt(lambda: sp(sp.input(9))) if is_swallowed else sp(sp.input(9))
        yield from ()

    doc = "FWD999 careless\n\nDetects: x.\nMatters: x.\nFix: x."
    return run_check(Check(doc=doc, run=run, planted=lambda subject: subject), subject)


def subject_of(kind: type[nn.Module]) -> Subject:
    return Subject(
        name="tests", build=lambda seed: kind(), forward=lambda module, x: module(x), input="embeddings", width=8
    )


class Raises(nn.Linear):
    def __init__(self) -> None:
        super().__init__(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + torch.ones(x.shape[1] + 1)


class Works(nn.Linear):
    def __init__(self) -> None:
        super().__init__(8, 8)


@pytest.mark.parametrize("is_swallowed", [True, False])
def test_what_an_adapter_raises_about_an_answer_is_no_finding(is_swallowed: bool) -> None:
    subject = replace(subject_of(Works), forward=lambda module, x: (module(x), eval(OWN)))
    result = checked(subject, is_swallowed=is_swallowed)
    assert not result.findings
    assert result.verdict is (Verdict.PASS if is_swallowed else Verdict.CRASH)


@pytest.mark.parametrize("is_swallowed", [True, False])
def test_what_the_module_raises_is_one(is_swallowed: bool) -> None:
    (found, *_) = checked(subject_of(Raises), is_swallowed=is_swallowed).findings
    assert "the subject raises RuntimeError" in found.message
    assert found.where.function == "forward"
