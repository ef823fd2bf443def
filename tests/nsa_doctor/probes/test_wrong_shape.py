"""What returns an output of a wrong shape is named by the line that made it so."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.core import registry
from nsa_doctor.probes.model.perform import WrongOutputError, checked_answer
from nsa_doctor.subject.contract import Subject
from nsa_doctor.worker.run_check import run_check
from tests.nsa_doctor.conftest import is_marked
from tests.nsa_doctor.small_subjects import small_subject


def subject_of(kind: type[nn.Module]) -> Subject:
    return small_subject(lambda: kind(8, 8), width=8, max_length=80)


class _DropsAToken(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        if x.shape[1] > 64:
            y = y[:, :-1]  # here
        return y.tanh() * 2


class _Widens(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return torch.cat((y, y), -1)  # here


class _PadsToBlocks(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        missing = -x.shape[1] % 16 if x.shape[1] > 16 else 0
        y = nn.functional.pad(super().forward(x), (0, 0, 0, missing))  # here
        return (y * 2).relu()


@pytest.mark.parametrize("kind", [_DropsAToken, _Widens, _PadsToBlocks])
def test_the_line_that_makes_the_shape_wrong_is_named(kind: type[nn.Linear]) -> None:
    finding = run_check(registry.load("FWD102"), subject_of(kind)).findings[0]
    assert is_marked(finding.where.file, finding.where.line), finding.where
    assert finding.where.module_class == kind.__name__


class _ReturnsWords(nn.Linear):
    def forward(self, x: Tensor) -> str:
        return "no tensor"


def test_what_returns_no_tensor_is_named_by_its_forward() -> None:
    finding = run_check(registry.load("FWD102"), subject_of(_ReturnsWords)).findings[0]
    assert finding.where.function == "forward"


class _Narrows(nn.Module):
    """Scores beside an output that is narrower than the input."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        weights = (x @ x.mT).softmax(-1)
        return weights, self.out(weights @ x)


@pytest.mark.parametrize("length", [1, 3, 8, 11])
def test_an_output_of_any_width_is_taken_before_scores_where_no_width_is_declared(length: int) -> None:
    subject = replace(subject_of(nn.Linear), is_width_kept=False)
    x = torch.randn(2, length, 8)
    weights, narrow = answer = _Narrows()(x)
    output, others = checked_answer(subject, answer, x)
    assert output is (weights if length == 3 else narrow)  # as wide as another: the first of the two
    assert len(others) == 1
    with pytest.raises(WrongOutputError, match=r"expected a floating-point tensor \[2, \d+, 8\]"):
        checked_answer(subject_of(nn.Linear), narrow, x)
