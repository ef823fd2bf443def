"""A mask of which only a docstring says what it hides is asked for what it does not hide."""

import linecache

import pytest
import torch
from torch import Tensor, nn

from nsa_doctor.adapters.any_module import adapt
from nsa_doctor.core import registry
from nsa_doctor.core.finding import Result
from nsa_doctor.subject.contract import Subject
from nsa_doctor.subject.request import SubjectRequest
from nsa_doctor.worker.run_check import run_check

DIM, SLOTS = 8, 3


class Slots(nn.Module):
    """Sets [B, S, width] with mask [B, S] (True at real elements) to vectors [B, width]."""

    def __init__(self) -> None:
        super().__init__()
        self.queries, self.value = nn.Parameter(torch.randn(SLOTS, DIM)), nn.Linear(DIM, DIM)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        share = (self.queries @ x.mT).softmax(1)  # of each element, what goes to which slot
        share = share if mask is None else share * mask[:, None]
        return (share @ self.value(x)).mean(1)


class MaskedTooEarly(Slots):
    """Sets [B, S, width] with mask [B, S] (True at real elements) to vectors [B, width]."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        scores = self.queries @ x.mT
        scores = scores if mask is None else scores.masked_fill(~mask[:, None], -1e9)
        return (scores.softmax(1) @ self.value(x)).mean(1)  # here


class Undocumented(MaskedTooEarly):
    """Sets to vectors; a mask says which elements are to be filled in."""


class OfAnotherKind(MaskedTooEarly):
    """Sets to vectors; mask: 1 for each real element of what is to be told apart [B, S, S]."""

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        return super().forward(x) * (1 if mask is None else 2)


def found(make: type[nn.Module]) -> Subject:
    request = SubjectRequest(spec="tests:make", lengths=(16,), width=DIM, explore=True, declared=("bidirectional",))
    return adapt(request, make)


def examined(make: type[nn.Module]) -> Result:
    return run_check(registry.load("FWD226"), found(make))


def test_a_mask_that_its_docstring_speaks_of_is_held_to_it() -> None:
    assert any("true for tokens, as its docstring says" in note for note in found(MaskedTooEarly).notes)
    (finding,) = examined(MaskedTooEarly).findings
    assert linecache.getline(finding.where.file, finding.where.line).endswith("# here\n"), finding


def test_one_that_hides_needs_no_docstring() -> None:
    assert not any("docstring" in note for note in found(Slots).notes)
    assert examined(Slots).findings == ()


@pytest.mark.parametrize("make", [Undocumented, OfAnotherKind])
def test_any_other_is_left_alone(make: type[nn.Module]) -> None:
    assert not found(make).offers("padded")
