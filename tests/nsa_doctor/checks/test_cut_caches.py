"""A cache of which too few of the newest rows are kept is found at the line that says how many."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.core.finding import Verdict
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.small_subjects import small_subject

DIM, WINDOW = 8, 4


class Window(nn.Module):
    """Sums of the newest tokens, with a cache of those that the next one sees."""

    def __init__(self, cut: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.mix, self.cut = nn.Linear(DIM, DIM), cut

    def forward(self, x: Tensor, past: Tensor | None = None) -> tuple[Tensor, Tensor]:
        values = self.mix(x).tanh()
        start = 0 if past is None else past.shape[1]
        values = values if past is None else torch.cat((past, values), 1)
        back = torch.arange(start, values.shape[1])[:, None] - torch.arange(values.shape[1])
        seen = (back >= 0) & (back < WINDOW)
        return seen.to(x.dtype) @ values, self.cut(values)


def by_name(values: Tensor) -> Tensor:
    keep = min(WINDOW - 2, values.shape[1])  # here
    return values[:, values.shape[1] - keep :]


def at_once(values: Tensor) -> Tensor:
    return values[:, -(WINDOW - 2) :]  # here


def two_short(values: Tensor) -> Tensor:
    return values[:, max(0, values.shape[1] - 1) :]  # here


def right(values: Tensor) -> Tensor:
    return values[:, max(0, values.shape[1] - WINDOW + 1) :]


def longer(values: Tensor) -> Tensor:
    return values[:, -WINDOW - 3 :]


def halved(values: Tensor) -> Tensor:
    return values[:, 1 - WINDOW :] * 0.5


def subject_of(cut: Callable[[Tensor], Tensor]) -> Subject:
    subject = small_subject(lambda: Window(cut), width=DIM, max_length=80)

    def step(module: nn.Module, x: Tensor, cache: Any) -> tuple[Tensor, Any]:
        answer: tuple[Tensor, Any] = module(x, cache)
        return answer

    return replace(subject, forward=lambda module, x: module(x)[0], prefill=lambda module, x: module(x), step=step)


@pytest.mark.parametrize("cut", [by_name, at_once, two_short])
@pytest.mark.parametrize("code", ["DEC101", "DEC102", "DEC111"])
def test_the_line_that_keeps_too_few_is_named(cut: Callable[[Tensor], Tensor], code: str) -> None:
    findings = run_check(registry.load(code), subject_of(cut)).findings
    assert findings or code != "DEC101"  # the others may depart as single tokens do
    for finding in findings:
        assert (finding.where.file, finding.where.function) == (__file__, cut.__name__)
        assert finding.where.line is not None
        assert Path(__file__).read_text(encoding="utf-8").splitlines()[finding.where.line - 1].endswith("# here")


@pytest.mark.parametrize("cut", [right, longer])
def test_enough_rows_are_nothing_to_find(cut: Callable[[Tensor], Tensor]) -> None:
    for code in ("DEC101", "DEC102", "DEC111"):
        result = run_check(registry.load(code), subject_of(cut))
        assert (result.verdict, result.findings) == (Verdict.PASS, ())


def test_another_fault_of_the_same_rows_is_left_to_its_own_line() -> None:
    (finding,) = run_check(registry.load("DEC101"), subject_of(halved)).findings
    assert finding.where.function in ("forward", "halved")
